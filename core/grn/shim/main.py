"""What the shim's interpreter executes: it is compiled each time, so it only leads to `run`."""

import sys

sys.path.append(__file__.rpartition("/grn/shim/")[0])

from grn.shim.run import main

main(sys.argv[1:])
