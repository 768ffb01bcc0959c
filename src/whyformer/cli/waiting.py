"""How the threads of torch wait for each other: asleep, in commands that take thousands of small steps.

By default a thread that is done with its share of an operation spins until the others are done. Beside another busy
process the others may not be running at all, and the spinning thread keeps the core that they need: an audit of ten
sentences took 80 seconds instead of 16 on two busy cores. Asleep, it takes what one thread takes.
"""

import os


def wait_asleep() -> None:
    """Let idle threads sleep. Has an effect only before torch is imported; a setting of the user stays."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
