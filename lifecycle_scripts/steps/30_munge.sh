#!/bin/bash
# The cluster's munge key, proved by a round trip (a comparison of files would prove nothing).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

code=0
hp_install "$HP_NODE_DIR/munge.key" /etc/munge/munge.key 0400 munge || code=$?
if [[ $code == 0 ]]; then
	systemctl restart munge.service
elif [[ $code == 10 ]]; then
	systemctl start munge.service
else
	exit "$code"
fi
for ((i = 0; i < 50; i++)); do
	if munge -n | unmunge >/dev/null 2>&1; then exit 0; fi
	sleep 0.1
done
hp_die "munge does not accept its own credential"
