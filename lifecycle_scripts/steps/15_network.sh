#!/bin/bash
# Checks address and name, and closes the way to any cloud's metadata service: it hands out the machine's rights.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

metadata=169.254.169.254
if [[ ${HP_METADATA:-none} == root ]]; then
	# In a cloud root's own programs need it: the controller on the head node, the scripts that fetch files.
	iptables -C OUTPUT -d "$metadata" -m owner ! --uid-owner 0 -j REJECT 2>/dev/null ||
		iptables -I OUTPUT -d "$metadata" -m owner ! --uid-owner 0 -j REJECT
else
	ip route replace blackhole "$metadata/32"
fi

for ((i = 0; i < 100; i++)); do
	if ip -4 -o addr show | grep -qF " $HP_ADDRESS/"; then break; fi
	sleep 0.1
done
ip -4 -o addr show | grep -qF " $HP_ADDRESS/" || hp_die "no interface has the address $HP_ADDRESS"

# torchrun's rendezvous hangs without a word when the own name does not resolve to the own address.
resolved=$(getent ahostsv4 "$HP_NODE" | awk 'NR == 1 { print $1 }')
[[ $resolved == "$HP_ADDRESS" ]] || hp_die "$HP_NODE resolves to '$resolved', not $HP_ADDRESS"
[[ $(hostname) == "$HP_NODE" ]] || hp_die "the host name is $(hostname), not $HP_NODE"
