"""Chat templates in the public formats of some model families, and a tokenizer that knows their special tokens.

Written for the tests from the formats as they are documented; each shows something that makes messages hard to find:
stripped contents, tools inside a message, JSON of calls, thinking that later turns drop.
"""

from functools import cache

import transformers as hf
from tiny_text import CORPUS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'tool' %}{% set role = 'ipython' %}{% else %}{% set role = m.role %}{% endif %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
{%- if tools and m.role == 'user' and loop.first %}
{{- 'Given the following functions, please respond with a JSON for a function call.\n\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}
{%- endif %}
{%- if m.tool_calls %}
{%- set call = m.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}' }}
{%- elif m.role == 'tool' %}{{ m.content | tojson }}
{%- else %}{{ m.content | trim }}{%- endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

MISTRAL = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
{%- if m.role == 'user' %}
{%- if loop.last and tools %}{{ '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' + (system + '\n\n' if loop.last and system else '') + m.content + '[/INST]' }}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}
{{- ']' + eos_token }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS] {"content": ' }}{{ m.content | tojson }}{{ '}[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}
{%- else %}{{ raise_exception('After the optional system message, roles must be user, assistant or tool') }}
{%- endif %}{%- endfor %}"""

QWEN = """\
{%- if tools %}{{ '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
{{- '# Tools\n\n<tools>' }}{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{%- set content = m.content or '' %}{% set thought = '' %}
{%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and thought %}{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{% endif %}
{{- content.lstrip('\n') }}
{%- for c in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
{%- if c.function.arguments is string %}{{ c.function.arguments }}
{%- else %}{{ c.function.arguments | tojson }}{% endif %}
{{- '}\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

DOCUMENTS = """\
{%- for d in documents or [] %}{{ '<document>\ntitle: ' + d.title + '\n' + d.text + '\n</document>\n' }}{% endfor %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

TEMPLATES = {"chatml": CHATML, "llama 3": LLAMA3, "mistral": MISTRAL, "qwen": QWEN, "documents": DOCUMENTS}
SPECIAL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]"),
    *("[/AVAILABLE_TOOLS]", "<think>", "</think>"),
]


@cache
def make_chat_tokenizer(style: str) -> hf.PreTrainedTokenizerFast:
    """A byte-level tokenizer, as most chat models have, with the template of this style."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    made = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", additional_special_tokens=SPECIAL[2:]
    )
    made.chat_template = TEMPLATES[style]
    return made
