#!/bin/bash
# Sends the record of this machine's birth to the cluster's folder, where the provider looks.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"

result=$ROOT/var/log/provision/result.json
id=$(python3 "$HERE/unpack.py" get "$result" instance_id)
status=$(python3 "$HERE/unpack.py" get "$result" status)
[[ $id == i-* && $status =~ ^[a-z]+$ ]]
# A boot that was cut short has not failed: at a shutdown the record says "running".
if [[ $status == running ]]; then exit 0; fi
for ((try = 1; ; try++)); do
	if aws s3 cp --only-show-errors "$ROOT/var/log/provision/provisioning.log" "$FOLDER/births/$id.log" &&
		aws s3 cp --only-show-errors "$result" "$FOLDER/births/$id.$status"; then
		exit 0
	fi
	if ((try >= 30)); then exit 1; fi
	sleep 10
done
