#!/bin/sh
# Runs every test program, and adds up their closing lines "name: N passed, N failed".
set -u
passed=0
failed=0
for program in "$@"; do
	output=$("$program" 2>&1)
	status=$?
	echo "$output"
	counts=$(echo "$output" | sed -n 's/^.*: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' | tail -1)
	passed=$((passed + ${counts% *}))
	failed=$((failed + ${counts#* }))
	if [ "$status" -ne 0 ] && [ "${counts#* }" = 0 ] || [ -z "$counts" ]; then
		echo "$program: ended with status $status" >&2
		failed=$((failed + 1))
	fi
done
echo "spank plugin: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
