"""Run the command line with `python -m whyformer.cli`."""

from whyformer.cli import main

main()
