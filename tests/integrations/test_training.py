"""The callbacks in the loops of transformers and Lightning, and the trackers with the real libraries.

A library that is not installed skips its tests; `pip install 'whyformer[integrations]'` installs all of them.
"""

import inspect
import json
import logging

import pytest
import tiny_text
import torch
from torch.utils.data import Dataset

from whyformer.errors import OutputError
from whyformer.integrations import FolderTracker, MlflowTracker, TensorBoardTracker, WandbTracker, Watch
from whyformer.integrations.trackers import import_optional

TEXTS = ["the film is bad", "a film"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def need(module: str) -> object:
    return pytest.importorskip(module, reason=f"{module} is not installed: pip install 'whyformer[integrations]'")


class Reviews(Dataset):
    """Token ids with a class each."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return {"input_ids": torch.tensor([2, 5 + i, 6, 3]), "labels": torch.tensor(i % 3)}


def make_look():
    module = tiny_text.bert()
    import whyformer as why

    watch = Watch(TEXTS, jump=1e-9)
    model = why.open(module, tokenizer=tiny_text.wordpiece())
    watch.look(model)
    with torch.no_grad():
        for weight in module.parameters():
            weight *= 1.5
    return watch.look(model, step=3)


@pytest.fixture(scope="module")
def look():
    return make_look()


def train(tmp_path, *callbacks):
    need("accelerate")
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, report_to="none", save_strategy="no",
        learning_rate=0.05, use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    model = tiny_text.bert().train()
    trainer = Trainer(
        model, args, train_dataset=Reviews(), processing_class=tiny_text.wordpiece(), callbacks=list(callbacks)
    )
    trainer.train()
    return model


def test_the_trainer_explains_every_n_steps_and_trains_as_without(tmp_path, caplog):
    need("accelerate")
    from whyformer.integrations.trainer import ExplainCallback

    callback = ExplainCallback(TEXTS, every=2, jump=0.01, trackers=[FolderTracker(tmp_path / "looks")])
    with caplog.at_level(logging.WARNING, "whyformer"):
        watched = train(tmp_path, callback)
    assert [look.step for look in callback.looks] == [0, 2, 4, 6]
    assert any("what the model looks at jumped" in record.message for record in caplog.records)
    assert len((tmp_path / "looks" / "looks.jsonl").read_text().splitlines()) == 4
    plain = train(tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(watched.parameters(), plain.parameters(), strict=True))


def test_the_parameters_are_in_the_signature():
    need("accelerate")
    from whyformer.integrations.trainer import ExplainCallback

    assert {"examples", "every", "trackers", "part"} <= {*inspect.signature(ExplainCallback).parameters}


def test_lightning_explains_every_n_steps(tmp_path):
    lightning = need("lightning.pytorch")
    from whyformer.integrations.lightning import ExplainCallback

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = tiny_text.bert()

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = ExplainCallback(TEXTS, every=2, part="model", tokenizer=tiny_text.wordpiece())
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Task(), torch.utils.data.DataLoader(Reviews(), batch_size=2))
    assert [look.step for look in callback.looks] == [0, 2, 4]
    assert callback.looks[-1].moved is not None


def test_tensorboard_has_numbers_a_figure_and_the_jump(look, tmp_path):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TensorBoardTracker(tmp_path).log(look)
    events = EventAccumulator(str(tmp_path)).Reload()
    (scalar,) = events.Scalars("whyformer/moved/largest")
    assert scalar.step == 3 and scalar.value == pytest.approx(max(look.moved), abs=1e-6)
    assert events.Images("whyformer/looks at")[0].width > 100
    assert "whyformer/jumps/text_summary" in events.Tags()["tensors"]


def test_mlflow_has_numbers_and_a_page(look, tmp_path, monkeypatch):
    mlflow = need("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    with mlflow.start_run() as run:
        MlflowTracker().log(look)
    found = mlflow.get_run(run.info.run_id)
    assert found.data.metrics["whyformer/moved/largest"] == pytest.approx(max(look.moved))
    assert "jumped" in found.data.tags["whyformer.jump"]
    assert list(tmp_path.rglob("step-000003.html"))


def test_wandb_offline_has_numbers_and_a_figure(look, tmp_path, monkeypatch):
    wandb = need("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="looks") as run:
        WandbTracker(run).log(look)
        summary = dict(run.summary)
    assert summary["whyformer/moved/largest"] == pytest.approx(max(look.moved)) and summary["whyformer/step"] == 3
    assert list(tmp_path.rglob("*.wandb")) and list(tmp_path.rglob("*.png"))


def test_a_library_that_is_missing_is_named_with_what_to_install():
    with pytest.raises(OutputError, match=r"pip install 'whyformer\[mlflow\]'"):
        import_optional("no_such_library", "mlflow")
    with pytest.raises(OutputError, match="There is no run of W&B"):
        need("wandb") and WandbTracker()


def test_a_look_can_be_written_as_json(look):
    assert json.loads(json.dumps(look.scalars()))["moved/largest"] > 0
