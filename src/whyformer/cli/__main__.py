"""python -m whyformer.cli"""

from whyformer.cli import main

main()
