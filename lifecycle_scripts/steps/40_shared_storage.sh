#!/bin/bash
# Every shared mount must be writable and readable before the node takes work; a late one is waited for.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

try_mount() {
	local probe="$1/.hyperpod-probe-$HP_NODE" text=$HP_INSTANCE_ID.$RANDOM
	# In a process that can be given up: a dead file server blocks for ever.
	# shellcheck disable=SC2016
	timeout --kill-after=1 5 bash -c 'echo "$2" >"$1" && [[ $(<"$1") == "$2" ]] && rm -f "$1"' _ "$probe" "$text" \
		2>/dev/null
}

for mount in $HP_SHARED_MOUNTS; do
	deadline=$((SECONDS + HP_MOUNT_WAIT_S))
	until try_mount "$mount"; do
		if ((SECONDS >= deadline)); then hp_die "$mount could not be written and read within $HP_MOUNT_WAIT_S s"; fi
		hp_log "$mount cannot be written yet"
		sleep 1
	done
done
