#!/bin/bash
# Configuration of our own daemons; the machine's identity is added here, the rest comes with the slot.
# Run again on a running node it takes over what has changed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

# Only in a cloud is there a metadata service to ask; a test network's own is named in the file.
endpoint=
if [[ ${HP_METADATA:-none} == root ]]; then
	endpoint=$(
		# shellcheck source=/dev/null
		. /etc/hyperpod/cloud.env
		echo "${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}"
	)
fi

if [[ $HP_ROLE == head ]]; then install -d -m 0700 /var/lib/hyperpod; fi
# Where a site puts its own health checks; the agent runs nothing that others than root could have written.
install -d -m 0755 /etc/hyperpod/checks.d
for name in agent controller; do
	target=/etc/hyperpod/$name.json
	if [[ ! -f $HP_NODE_DIR/$name.json ]]; then continue; fi
	jq --arg id "$HP_INSTANCE_ID" --arg address "$HP_ADDRESS" --arg endpoint "$endpoint" \
		'if has("node") then .instance_id = $id | .address = $address | .metadata_endpoint = $endpoint else . end' \
		"$HP_NODE_DIR/$name.json" >"/etc/hyperpod/.$name.json"
	if cmp -s "/etc/hyperpod/.$name.json" "$target"; then
		rm -f "/etc/hyperpod/.$name.json"
		continue
	fi
	# The controller reads the list of nodes anew by itself; everything else, also the number of spares, at its start.
	restart=yes
	if [[ $name == controller && -f $target ]]; then
		rest='del(.nodes, .policies.groups[].count)'
		if cmp -s <(jq -S "$rest" "$target") <(jq -S "$rest" "/etc/hyperpod/.$name.json"); then restart=no; fi
	fi
	chmod 0644 "/etc/hyperpod/.$name.json"
	mv -f "/etc/hyperpod/.$name.json" "$target"
	if [[ $restart == yes ]]; then systemctl try-restart --no-block "hyperpod-$name.service"; fi
done
