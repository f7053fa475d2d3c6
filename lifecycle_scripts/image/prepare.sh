#!/bin/bash
# Turns plain Debian with Slurm into a node image. Runs once, inside the image, when its last layer is built.
set -euo pipefail

# --- users
getent passwd ubuntu >/dev/null || useradd --uid 1000 --no-create-home --home-dir /home/ubuntu --shell /bin/bash ubuntu
printf 'ubuntu ALL=(ALL) NOPASSWD:ALL\n' >/etc/sudoers.d/90-ubuntu
chmod 0440 /etc/sudoers.d/90-ubuntu

# --- nothing secret, and nothing that would be equal on every node, may come with the image
rm -f /etc/munge/munge.key /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
touch /etc/machine-id

# --- names come from the cluster's own list
ln -sfn /opt/hyperpod/cluster/hosts /etc/hosts

# --- Slurm: started by the bootstrap, configured by the head node; Debian's plugstack.conf includes a glob
rm -f /etc/slurm/plugstack.conf
rmdir /etc/slurm/plugstack.conf.d 2>/dev/null || true

# --- units: a node needs few; each one less shortens every boot
cp -r /opt/hyperpod/lifecycle_scripts/units/. /etc/systemd/system/
cd /etc/systemd/system
rm -rf multi-user.target.wants getty.target.wants timers.target.wants sysinit.target.wants ssh.service.wants
mkdir -p multi-user.target.wants
ln -sf ../hyperpod-bootstrap.service multi-user.target.wants/hyperpod-bootstrap.service
for unit in \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
	dev-hugepages.mount dev-mqueue.mount sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
	sys-fs-fuse-connections.mount tmp.mount run-lock.mount proc-sys-fs-binfmt_misc.automount \
	kmod-static-nodes.service ldconfig.service systemd-binfmt.service systemd-firstboot.service \
	systemd-modules-load.service systemd-pstore.service systemd-sysctl.service systemd-sysusers.service \
	systemd-update-done.service systemd-journal-catalog-update.service systemd-hwdb-update.service \
	systemd-machine-id-commit.service systemd-random-seed.service systemd-remount-fs.service \
	systemd-tmpfiles-setup-dev.service systemd-tmpfiles-setup-dev-early.service systemd-tpm2-setup.service \
	systemd-tpm2-setup-early.service systemd-pcrphase-sysinit.service systemd-pcrphase.service \
	systemd-pcrmachine.service systemd-hibernate-clear.service systemd-udevd.service systemd-udev-trigger.service \
	systemd-logind.service getty.target getty-static.service console-getty.service serial-getty@.service \
	sshd-keygen.service systemd-ask-password-console.path systemd-ask-password-wall.path \
	modprobe@.service systemd-networkd-wait-online.service; do
	ln -sfn /dev/null "$unit"
done
ln -sfn /usr/lib/systemd/system/multi-user.target default.target
mkdir -p system.conf.d journald.conf.d
mkdir -p /etc/systemd/system.conf.d /etc/systemd/journald.conf.d
# The host's kernel log is not this node's; and a node's journal need not outlive a boot.
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nRuntimeMaxUse=64M\n' >/etc/systemd/journald.conf.d/hyperpod.conf
printf '[Manager]\nDefaultTimeoutStopSec=10s\n' >/etc/systemd/system.conf.d/hyperpod.conf
rm -rf system.conf.d journald.conf.d

# --- sshd: keys only
mkdir -p /etc/ssh/sshd_config.d /run/sshd
printf '%s\n' 'PasswordAuthentication no' 'PermitRootLogin prohibit-password' 'UseDNS no' \
	'HostKey /etc/ssh/ssh_host_ed25519_key' 'AcceptEnv LANG LC_* SLURM_* HYPERPOD_*' \
	>/etc/ssh/sshd_config.d/hyperpod.conf

# --- our own programs
mkdir -p /opt/hyperpod/bin
for program in hyperpod:hyperpod.__main__ hyperpod-agent:hyperpod.agent.__main__ \
	hyperpod-controller:hyperpod.controller.__main__; do
	name=${program%%:*}
	printf '%s\n' '#!/usr/bin/python3' 'import sys' 'sys.path.insert(0, "/opt/hyperpod/lib")' \
		"from ${program#*:} import main" 'sys.exit(main())' >"/opt/hyperpod/bin/$name"
	chmod 0755 "/opt/hyperpod/bin/$name"
	ln -sfn "/opt/hyperpod/bin/$name" "/usr/local/bin/$name"
done
# Training scripts may import hyperpod.checkpoint without setting anything.
printf '/opt/hyperpod/lib\n' >/usr/lib/python3/dist-packages/hyperpod.pth
python3 -m compileall -q -j 2 /opt/hyperpod/lib

# --- the SPANK plugin, against the Slurm that will load it
if [[ -f /opt/hyperpod/src/spank_plugin/Makefile ]]; then
	make -s -C /opt/hyperpod/src/spank_plugin install
fi
