#!/bin/bash
# Configuration of our own daemons; the machine's identity is added here, the rest comes with the slot.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

for name in agent controller; do
	if [[ ! -f $HP_NODE_DIR/$name.json ]]; then continue; fi
	jq --arg id "$HP_INSTANCE_ID" 'if has("node") then .instance_id = $id else . end' \
		"$HP_NODE_DIR/$name.json" >"/etc/hyperpod/.$name.json"
	chmod 0644 "/etc/hyperpod/.$name.json"
	mv -f "/etc/hyperpod/.$name.json" "/etc/hyperpod/$name.json"
done
if [[ $HP_ROLE == head ]]; then install -d -m 0700 /var/lib/hyperpod; fi
