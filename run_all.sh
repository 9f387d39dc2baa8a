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

toy() { run "$1" --preset=toy "${@:2}"; }

flags_of() {    # flags_of NAME: masked_ce is mdlm with another objective
    case $1 in
        masked_ce) echo --mode=mdlm --objective=masked_ce ;;
        infill) echo --mode=aogpt --orders=infill ;;
        *) echo --mode="$1" ;;
    esac
}

learn() {       # learn GROUP NAME STEPS SEED FLAGS …: out/GROUP/NAME-SEED, 1.4M parameters on stories
    run "$1/$2-$4" --preset=laptop --data=stories --batch_size=8 --n_embd=128 --n_hidden=352 \
        --eval_interval=625 --max_steps="$3" --seed="$4" $(flags_of "${2%%-*}") "${@:5}"
}

few() {         # few MODE HELP STEPS SEED: on 500 stories, read again and again
    local help=
    [ "$2" = dropout ] && help=--dropout=0.3
    [ "$2" = both ] && help="--dropout=0.3 --token_noise=0.3"
    learn few "$1-$2-$3" "$3" "$4" --train_stories=500 $help
}

folders() { echo "$@" | tr " " ,; }

[ -e data/toy ] || python prepare_data.py
[ -e data/unseen ] || python -m experiments.texts ${2:+--train="$1" --valid="$2"}

# How long should a block be?
dial() {        # dial N SEED
    for mode in mdlm aogpt; do
        toy dial-toy/$mode-$1-$2 --mode=$mode --orders=blocks:$1 --seed=$2
    done
}
for N in 1 2 4 8 16 48; do dial $N 1; done
for seed in 2 3; do
    for N in 1 8 16 48; do dial $N $seed; done
done
made dial 25 python -m experiments.dial --seeds=1,2,3 --plot=results/figures/dial.png
for mode in mdlm aogpt; do
    for N in 1 16 256; do learn dial-stories $mode-$N 1250 1 --orders=blocks:$N; done
done
made dial-stories 10 python -m experiments.dial --text=stories \
    --plot=results/figures/dial-stories.png

# What does a sampler lose by its own rule, and what by its network?
toy toy/ar --mode=ar
made denoiser 30 python -m experiments.denoiser ar=out/toy/ar mdlm=out/dial-toy/mdlm-48-1 \
    blocks=out/dial-toy/mdlm-8-1 aogpt=out/dial-toy/aogpt-48-1 \
    --seconds=64 --plot=results/figures/denoiser.png

# Does masked diffusion win when stories are few? Each help is tried with seed 1. What has the lowest
# loss on the stories that choose, with help and without, gets more seeds.
for steps in 125 250 500 1000; do few ar plain $steps 1; done
for steps in 500 1000; do few ar dropout $steps 1; done
for steps in 1000 1250 2500; do few ar both $steps 1; done
for steps in 2500 5000; do few masked_ce plain $steps 1; done
for help in dropout both; do few masked_ce $help 5000 1; done
for steps in 1250 5000; do few aogpt plain $steps 1; done
few aogpt dropout 2500 1
for seed in 2 3; do
    few ar plain 250 $seed
    few ar both 1250 $seed
    few masked_ce plain 2500 $seed
    few masked_ce dropout 5000 $seed
    few aogpt plain 1250 $seed
    few aogpt dropout 2500 $seed
done
made few 15 python -m experiments.held_out --plot=results/figures/few.png \
    --runs="$(folders out/few/*)"

# What is gained by seeing both sides of a blank, and is a GPT that fills in the middle enough?
toy toy/infill --mode=aogpt --orders=infill
made blanks-toy 8 python -m experiments.infill --data=toy --windows=100 \
    --models=out/toy/ar,out/toy/infill,out/dial-toy/aogpt-48-1,out/dial-toy/mdlm-48-1
learn stories ar 1250 1
learn stories infill 1250 1
made blanks-stories 20 python -m experiments.infill --data=unseen --windows=400 \
    --plot=results/figures/blanks.png --models="$(folders \
    out/stories/{ar,infill}-1 out/dial-stories/{aogpt,mdlm}-256-1)"

# Why does masked_ce lower the bound faster than the bound itself?
learn steps mdlm-150 150 1
made gradient 6 python -m experiments.gradient \
    early=out/steps/mdlm-150-1 late=out/dial-stories/mdlm-256-1

python -m experiments.report
echo "computing time of all programs:"
times
