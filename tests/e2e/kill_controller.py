"""Runs on the head node: kills the controller as soon as its journal tells each of the events named, in turn.

Arguments: the last event's id now, then kinds of events. Prints each kind whose event it has killed at. Ends
with the repair.
"""

import sqlite3
import subprocess
import sys
import time

journal = sqlite3.connect("file:/var/lib/hyperpod/controller.db?mode=ro", uri=True)
last = int(sys.argv[1])
stages = list(sys.argv[2:])
ends_at = time.monotonic() + 120
while stages and time.monotonic() < ends_at:
    try:
        rows = journal.execute("SELECT kind FROM events WHERE event_id > ?", (last,)).fetchall()
    except sqlite3.OperationalError:
        rows = []
    seen = [stage for stage in stages if (stage,) in rows]
    if seen:
        subprocess.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", "hyperpod-controller"], check=False)
        print(seen[0], flush=True)
        # Events of the same moment are one kill.
        stages = [stage for stage in stages if stage not in seen]
    if ("NodeHealthy",) in rows:
        break
    time.sleep(0.005)
