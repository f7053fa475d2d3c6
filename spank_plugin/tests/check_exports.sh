#!/bin/sh
# The plugin shows Slurm exactly the symbols it needs.
set -eu
found=$(nm -D --defined-only "$1" | awk '{print $3}' | sed 's/@.*//' | sort | tr '\n' ' ')
expected="plugin_name plugin_type plugin_version slurm_spank_exit slurm_spank_init \
slurm_spank_init_post_opt slurm_spank_task_exit slurm_spank_task_init slurm_spank_task_post_fork spank_plugin_version "
if [ "$found" != "$expected" ]; then
	echo "check_exports: expected: $expected" >&2
	echo "check_exports: found:    $found" >&2
	exit 1
fi
