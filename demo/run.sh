#!/bin/sh
# make demo: a small LLaMA is planned, trained and asked for text, all inside 40 MiB. About a minute on any machine: it
# trains as many steps as the plan's clock says fit into 40 seconds, but no fewer than it takes to learn to spell.
set -eu
cd "$(dirname "$0")/.."
plimsoll=${PLIMSOLL:-build/release/plimsoll}
out=runs/demo
seconds=${DEMO_SECONDS:-40} fewest=${DEMO_STEPS:-60} most=400 # a test asks for less

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
title() { printf '\n%s== %s%s\n\n' "$bold" "$1" "$plain"; }
show() { printf '%s$ plimsoll %s%s\n' "$bold" "$*" "$plain"; "$plimsoll" "$@"; }

# A number from the last line of the log that has it.
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$out/log.jsonl" | tail -n 1; }

# The losses of the log as one curve of 64 columns.
curve() {
    sed -n 's/.*"event":"step".*"loss":\([0-9.]*\).*/\1/p' "$out/log.jsonl" | awk '
        { loss[NR] = $1; if (NR == 1 || $1 < low) low = $1; if ($1 > high) high = $1 }
        END {
            split("▁ ▂ ▃ ▄ ▅ ▆ ▇ █", step, " "); width = NR < 64 ? NR : 64
            for (i = 0; i < width; i++) {
                value = loss[1 + int(i * (NR - 1) / (width > 1 ? width - 1 : 1))]
                row = row step[1 + int(7.999 * (value - low) / (high > low ? high - low : 1))]
            }
            printf "  loss %.2f  %s  %.2f\n", loss[1], row, loss[NR]
        }'
}

rm -rf "$out"
mkdir -p "$out"

title "1. The plan: where every byte will live, before anything runs"
show plan demo/small.yaml --html "$out/plan.html"
printf '\n  A picture of the arena, address by time, is in %s: open it in a browser.\n' "$out/plan.html"

title "2. Training exactly as planned"
step_ms=$("$plimsoll" plan demo/small.yaml --json --quiet | sed -n 's/.*"step_ms": *\([0-9.]*\).*/\1/p')
steps=$(awk -v ms="${step_ms:?the plan has no predicted step}" -v seconds=$seconds -v fewest=$fewest -v most=$most '
    BEGIN { n = int(1000 * seconds / ms); if (n < fewest) n = fewest; if (n > most) n = most; print n }')
printf '  A step is predicted to take %.0f ms, so %d of them are trained.\n\n' "$step_ms" "$steps"
if [ -t 1 ]; then
    show train demo/small.yaml --steps "$steps" --log "$out/log.jsonl"
else
    show train demo/small.yaml --steps "$steps" --log "$out/log.jsonl" --set training.log_every=20
fi
printf '\n'
curve

title "3. Was the plan true?"
awk -v plan="$(field planned_peak)" -v ledger="$(field ledger_peak)" -v rss="$(field rss_peak)" -v budget="$(field budget_bytes)" '
    function put(name, bytes) { printf "  %-44s %12d bytes  %6.2f MiB\n", name, bytes, bytes / 1048576 }
    BEGIN {
        put("budget", budget); put("planned peak", plan); put("peak in the ledger", ledger)
        put("peak of the process, as the system saw it", rss)
        printf "\n  planned %s ledger; the process stayed %.2f %% %s the plan\n",
            (plan == ledger ? "=" : "is not"), 100 * (plan > rss ? plan - rss : rss - plan) / plan,
            (plan >= rss ? "below" : "above")
    }'

title "4. What it has learned"
# The text first: a pipe would hide that nothing came.
ask() {
    text=$("$plimsoll" generate "$out" --prompt "$1" --max-tokens 110 --temperature 0.3 --echo --budget 24MiB "$2")
    printf '%s\n' "$text" | fold -s -w 100
}
printf '%s$ plimsoll generate %s --prompt "A load line " --max-tokens 110 --temperature 0.3 --echo --budget 24MiB%s\n' \
    "$bold" "$out" "$plain"
ask "A load line " --quiet
printf '\n'
ask "The master of the " --quiet
printf '\n'
ask "To the owner's clerk of the " --no-quiet

printf '\n%sNext%s  %s plan demo/small.yaml --budget 34MiB              a tighter line\n' "$bold" "$plain" "$plimsoll"
printf '      %s train demo/small.yaml --overwrite --budget-at 40=36MiB  a line that moves while it runs\n' "$plimsoll"
printf '      %s export %s -o demo-hf                    a folder that transformers loads\n' "$plimsoll" "$out"
