#!/bin/bash
# Turns Debian into what an EC2 image would be: cloud-init, nothing of ours, no daemon that starts by itself.
# Runs once, inside the image. What it masks are units that a container cannot have.
set -euo pipefail

rm -f /etc/munge/munge.key /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
touch /etc/machine-id
# Packages that are baked into an image are there before the first boot, but their daemons wait for their files.
cd /etc/systemd/system
rm -rf getty.target.wants timers.target.wants sysinit.target.wants multi-user.target.wants/*
for unit in \
	dev-hugepages.mount dev-mqueue.mount sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
	sys-fs-fuse-connections.mount tmp.mount run-lock.mount proc-sys-fs-binfmt_misc.automount proc-fs-nfsd.mount \
	var-lib-nfs-rpc_pipefs.mount run-rpc_pipefs.mount auth-rpcgss-module.service nfs-blkmap.service \
	kmod-static-nodes.service systemd-binfmt.service systemd-firstboot.service systemd-modules-load.service \
	systemd-pstore.service systemd-random-seed.service systemd-remount-fs.service systemd-tmpfiles-setup-dev.service \
	systemd-tmpfiles-setup-dev-early.service systemd-hwdb-update.service systemd-udevd.service \
	systemd-udev-trigger.service systemd-logind.service getty.target getty-static.service console-getty.service \
	serial-getty@.service modprobe@.service systemd-networkd-wait-online.service systemd-resolved.service \
	systemd-update-done.service ldconfig.service systemd-journal-catalog-update.service \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
	ln -sfn /dev/null "$unit"
done
ln -sfn /usr/lib/systemd/system/multi-user.target default.target
mkdir -p /etc/systemd/journald.conf.d /etc/systemd/system.conf.d /run/sshd
printf '[Journal]\nStorage=volatile\nReadKMsg=no\n' >/etc/systemd/journald.conf.d/body.conf
printf '[Manager]\nDefaultTimeoutStopSec=10s\n' >/etc/systemd/system.conf.d/body.conf
systemctl enable cloud-init-local.service cloud-init-main.service cloud-init-network.service cloud-config.service \
	cloud-final.service

# It reads what lies in its folder, and never looks for a service that is not ours.
cat >/etc/cloud/cloud.cfg.d/99_body.cfg <<'END'
datasource_list: [ NoCloud, None ]
network: { config: disabled }
ssh_genkeytypes: [ ed25519 ]
growpart: { mode: "off" }
resize_rootfs: false
apt: { preserve_sources_list: true }
END
