#!/bin/bash
# Brings /fsx and /home on machines that do not get them from the provider: FSx for Lustre, or the head node's disk.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

# mount_late TYPE SOURCE TARGET OPTIONS: a file server that is not up yet is waited for.
mount_late() {
	mkdir -p "$3"
	if mountpoint -q "$3"; then return 0; fi
	local deadline=$((SECONDS + HP_MOUNT_WAIT_S))
	until timeout 30 mount -t "$1" -o "$4" "$2" "$3"; do
		if ((SECONDS >= deadline)); then hp_die "$2 could not be mounted on $3 within $HP_MOUNT_WAIT_S s"; fi
		sleep 2
	done
}

# Whoever made the machine may have brought them.
if mountpoint -q /fsx && mountpoint -q /home; then exit 0; fi
case ${HP_STORAGE:-provided} in
provided) ;;
lustre)
	command -v mount.lustre >/dev/null || hp_die "the image has no Lustre client, and /fsx is FSx for Lustre"
	mount_late lustre "$HP_FSX_DNS@tcp:/$HP_FSX_MOUNT" /fsx relatime,flock
	mkdir -p /fsx/home
	mountpoint -q /home || mount --bind /fsx/home /home
	;;
head)
	if [[ $HP_ROLE == head ]]; then
		mkdir -p /srv/hyperpod/fsx /srv/hyperpod/home /fsx
		chmod 1777 /srv/hyperpod/fsx
		network=$(ip -4 -o route show scope link | awk -v address="$HP_ADDRESS" '$0 ~ "src " address { print $1; exit }')
		printf '%s %s(rw,no_root_squash,no_subtree_check,fsid=1)\n' /srv/hyperpod/fsx "$network" >/etc/exports
		printf '%s %s(rw,no_root_squash,no_subtree_check,fsid=2)\n' /srv/hyperpod/home "$network" >>/etc/exports
		systemctl enable --now nfs-server.service
		exportfs -ra
		mountpoint -q /fsx || mount --bind /srv/hyperpod/fsx /fsx
		mountpoint -q /home || mount --bind /srv/hyperpod/home /home
	else
		mount_late nfs4 "$HP_HEAD_ADDRESS:/srv/hyperpod/fsx" /fsx hard,noatime
		mount_late nfs4 "$HP_HEAD_ADDRESS:/srv/hyperpod/home" /home hard,noatime
	fi
	;;
*) hp_die "unknown storage $HP_STORAGE" ;;
esac
