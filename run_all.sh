#!/usr/bin/env bash
# Makes the numbers of results/ again:
#
#     ./run_all.sh TRAIN VALID          two files of TinyStories; without them they are downloaded
#
# Each line of the list below makes one file in results/data, which takes about as many minutes on
# one core of a CPU as it says. A file that is there is not made again, and no run in out/ is
# trained again, so it can be stopped at any time and goes on where it was. To make a number anew,
# delete its file. Two cores share the work best with two copies of a list cut in two, and with
# OMP_NUM_THREADS=1.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p results/data results/figures

made() {        # made NAME MINUTES COMMAND …: results/data/NAME.json by this command
    local file=results/data/$1.json part=results/data/$1.part.json
    [ -e "$file" ] && return
    echo "== $1, about $2 minutes"
    shift 2
    "$@" --json="$part"
    mv "$part" "$file"
}

run() {         # run NAME FLAGS …: the run out/NAME, from its beginning or from where it stopped
    local folder=out/$1
    shift
    grep -qs final_nll "$folder/log.jsonl" && return
    if [ -e "$folder/ckpt.pt" ]; then
        python train.py --resume --out_dir="$folder"
    else
        python train.py --quiet --seed=1 --out_dir="$folder" "$@"
    fi
}

toy() { run "toy/$1" --preset=toy "${@:2}"; }
stories() {     # the sizes and steps of experiments/dial.py
    run "stories/$1" --preset=laptop --data=stories --batch_size=8 --n_embd=128 --n_hidden=352 \
        --max_steps=1250 --eval_interval=625 "${@:2}"
}

[ -e data/toy ] || python prepare_data.py
[ -e data/unseen ] || python -m experiments.texts ${2:+--train="$1" --valid="$2"}

# How long should a block be?
made dial 160 python -m experiments.dial --seeds=1,2,3 --plot=results/figures/dial.png
made dial-stories 65 python -m experiments.dial --text=stories --plot=results/figures/dial-stories.png

# What does a sampler lose by its own rule, and what by its network?
toy ar --mode=ar
made denoiser 30 python -m experiments.denoiser ar=out/toy/ar mdlm=out/dial-toy/mdlm-48-1 \
    blocks=out/dial-toy/mdlm-8-1 aogpt=out/dial-toy/aogpt-48-1 \
    --seconds=64 --plot=results/figures/denoiser.png

# What is gained by seeing both sides of a blank, and is a GPT that fills in the middle enough?
toy infill --mode=aogpt --orders=infill
made blanks-toy 8 python -m experiments.infill --data=toy --windows=100 \
    --models=out/toy/ar,out/toy/infill,out/dial-toy/aogpt-48-1,out/dial-toy/mdlm-48-1
stories ar --mode=ar
stories infill --mode=aogpt --orders=infill
made blanks-stories 20 python -m experiments.infill --data=unseen --windows=400 \
    --plot=results/figures/blanks.png \
    --models=out/stories/ar,out/stories/infill,out/dial-stories/aogpt-256-1,out/dial-stories/mdlm-256-1

# Why does masked_ce lower the bound faster than the bound itself?
stories mdlm-early --mode=mdlm --max_steps=150
made gradient 6 python -m experiments.gradient early=out/stories/mdlm-early late=out/dial-stories/mdlm-256-1

python -m experiments.report
echo "computing time of all programs:"
times
