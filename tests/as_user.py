"""Run `grn …` as another user: `python -m tests.as_user UID UMASK broker …`, started by root.

Modules are loaded first, since a Python in root's home cannot be read any more afterwards.
"""

from __future__ import annotations

import encodings.ascii
import encodings.idna
import os
import shutil
import sys
import traceback

import grn.broker.server
import grn.cli.broker
import grn.devices.simulated
from grn.cli.main import main

LOADED = (encodings, shutil, traceback, grn.broker.server, grn.cli.broker, grn.devices.simulated)

if __name__ == "__main__":
    uid, umask = int(sys.argv[1]), int(sys.argv[2], 8)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(umask)
    sys.exit(main(sys.argv[3:]))
