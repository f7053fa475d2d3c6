#!/bin/bash
# One rank of a training in bash: counts, and rank 0 saves. It writes down every step with time, attempt, rank and node.
#
# STEPS, STEP_TIME, SAVE_EVERY  how long it runs; a file called stop in its directory ends it well at once
# FAIL_AT, FAIL_AFTER           exits with status 3 at a step, or after so many steps of an attempt
# HANGS                         a rank that goes on for ever and ignores SIGTERM
# LEAVES_HALF                   rank 0 begins a checkpoint that it never finishes
set -eu

dir="$HYPERPOD_CHECKPOINT_DIR"
attempt="${HYPERPOD_ATTEMPT:-0}"
rank="${SLURM_PROCID:-0}"
mkdir -p "$dir"
step=0
if [[ -n "${HYPERPOD_RESUME_FROM:-}" ]]; then
    step=$(<"$HYPERPOD_RESUME_FROM/counter")
fi
begin=$step
# Where the job asked for it the failure before is told in a file, which a log could be.
echo "${HYPERPOD_PREVIOUS_FAILURE:-}" >"$dir/previous-$attempt"
echo "start $EPOCHREALTIME $attempt $rank $HOSTNAME $step" >>"$dir/trace"

if [[ "${HANGS:-}" == "$rank" ]]; then
    trap '' TERM
    STEPS=1000000
fi

save() {
    rm -rf "$dir/.step_$1" "$dir/step_$1"
    mkdir "$dir/.step_$1"
    echo "$1" >"$dir/.step_$1/counter"
    mv -T "$dir/.step_$1" "$dir/step_$1"
}

while ((step < STEPS)) && [[ ! -e "$dir/stop" ]]; do
    sleep "$STEP_TIME"
    step=$((step + 1))
    echo "step $EPOCHREALTIME $attempt $rank $HOSTNAME $step" >>"$dir/trace"
    if ((rank == 0 && step % SAVE_EVERY == 0)); then
        save "$step"
        if [[ -n "${LEAVES_HALF:-}" && "$attempt" == 1 ]]; then
            mkdir -p "$dir/step_9999" # no file in it: a save that was cut short
        fi
    fi
    if [[ "${FAIL_AT:-}" == "$step" ]] || { [[ -n "${FAIL_AFTER:-}" ]] && ((step - begin >= FAIL_AFTER && step < STEPS)); }; then
        exit 3
    fi
done
echo "end $EPOCHREALTIME $attempt $rank $HOSTNAME $step" >>"$dir/trace"
