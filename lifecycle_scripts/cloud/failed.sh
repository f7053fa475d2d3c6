#!/bin/bash
# Sends word that this machine failed before its birth began: failed.sh STATUS. The end of the log goes with it.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"

log=$ROOT/var/log/provision
say "error: the first boot ended with status $1"
python3 - "$(metadata instance-id)" "$1" "$log/user-data.log" >"$log/result.json" <<'END'
import collections, json, sys

identity, code, path = sys.argv[1:]
try:
    with open(path, encoding="utf-8", errors="replace") as file:
        tail = [line.rstrip("\n") for line in collections.deque(file, 20)]
except OSError:
    tail = []
print(json.dumps({
    "instance_id": identity, "status": "failed", "script": "first_boot.sh", "exit_code": int(code), "attempt": 1,
    "message": f"first_boot.sh ended with status {code}", "tail": tail,
}))
END
"$HERE/record.sh"
