"""Run a function in a copy of this process, to be killed. A fork starts at once; importing torch takes seconds."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from whyformer.errors import WhyformerError

BUG = 99


def start_child(function: Callable[[], Any]) -> int:
    """The process id of a child that runs the function and ends as the command line would."""
    process = os.fork()
    if process:
        return process
    status = BUG
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        function()
        status = 0
    except KeyboardInterrupt:
        status = 130
    except SystemExit as ended:
        status = int(ended.code or 0)
    except WhyformerError as error:
        status = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def wait_for(process: int) -> int:
    """The exit status of a child; negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
