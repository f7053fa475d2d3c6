#!/bin/bash
# Starts the daemons of this role. Their units refuse to start without /run/hyperpod/born.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

case $HP_ROLE in
head) systemctl start slurmctld.service && systemctl start --no-block hyperpod-controller.service ;;
# Not waited for: while slurmctld is away they keep trying by themselves.
worker)
	hold=/run/systemd/system/slurmd.service.d/hyperpod-first-check.conf
	if jq -e '(.deep_on_start // []) | length > 0' /etc/hyperpod/agent.json >/dev/null; then
		# A node that registers gets a pending job at once: slurmd waits until the controller keeps jobs away. A try that
		# fails is made again (Restart=always), however long the controller is away.
		install -d -m 0755 "${hold%/*}"
		printf '[Service]\nExecStartPre=/opt/hyperpod/bin/hyperpod-agent first-check\n' >"$hold"
		systemctl daemon-reload
	fi
	systemctl start --no-block slurmd.service
	;;
login) systemctl start --no-block sackd.service ;;
*) hp_die "unknown role $HP_ROLE" ;;
esac
systemctl start --no-block hyperpod-agent.service
if [[ $HP_ROLE == worker ]]; then systemctl start --no-block hyperpod-goodbye.service; fi
