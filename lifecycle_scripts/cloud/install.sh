#!/bin/bash
# Brings what a node needs: Slurm (the image's own in /opt/slurm, else the distribution's), munge, our programs.
#
# On an image that has it all baked in, this takes a second.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
packages=(munge jq curl iproute2 iptables procps openssh-server nfs-common nfs-kernel-server
	python3 python3-typer python3-rich python3-pydantic python3-tenacity python3-prometheus-client
	python3-clustershell python3-yaml python3-boto3)
if [[ ! -x /opt/slurm/sbin/slurmd ]]; then packages+=(slurmctld slurmd slurm-client sackd gcc make libslurm-dev); fi

missing=()
for package in "${packages[@]}"; do
	if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then missing+=("$package"); fi
done
if ((${#missing[@]})); then
	# Daemons must not start before their configuration is there; the image's timers may hold the lock for a while.
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 0755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	for ((try = 1; ; try++)); do
		if apt-get -o DPkg::Lock::Timeout=300 -q update &&
			apt-get -o DPkg::Lock::Timeout=300 -q -y --no-install-recommends install "${missing[@]}"; then break; fi
		if ((try >= 5)); then exit 1; fi
		sleep 15
	done
fi
systemctl disable --now slurmctld.service slurmd.service sackd.service nfs-server.service 2>/dev/null || true

if ! getent passwd ubuntu >/dev/null; then
	# Its home is shared, so its number must be one on all machines. Images have their own first user, such as Debian's
	# "admin", and all machines of one image have the same.
	uid=1000
	if getent passwd "$uid" >/dev/null; then uid=1500; fi
	useradd --uid "$uid" --no-create-home --home-dir /home/ubuntu --shell /bin/bash ubuntu
fi
getent passwd slurm >/dev/null || useradd --system --no-create-home --shell /usr/sbin/nologin slurm
rm -f /etc/slurm/plugstack.conf
rmdir /etc/slurm/plugstack.conf.d 2>/dev/null || true

mkdir -p /opt/hyperpod/bin
for program in hyperpod:hyperpod.__main__ hyperpod-agent:hyperpod.agent.__main__ \
	hyperpod-controller:hyperpod.controller.__main__; do
	name=${program%%:*}
	printf '%s\n' '#!/usr/bin/python3' 'import sys' 'sys.path.insert(0, "/opt/hyperpod/lib")' \
		"from ${program#*:} import main" 'sys.exit(main())' >"/opt/hyperpod/bin/$name"
	chmod 0755 "/opt/hyperpod/bin/$name"
	ln -sfn "/opt/hyperpod/bin/$name" "/usr/local/bin/$name"
done
if [[ -d /usr/lib/python3/dist-packages ]]; then
	printf '/opt/hyperpod/lib\n' >/usr/lib/python3/dist-packages/hyperpod.pth
fi
# Users cannot write there: without this each of their commands would compile it all again.
python3 -m compileall -q -j 0 /opt/hyperpod/lib
# Against the very Slurm that will load it.
if [[ -f /opt/hyperpod/src/spank_plugin/Makefile ]]; then make -s -C /opt/hyperpod/src/spank_plugin install; fi
