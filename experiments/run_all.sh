#!/usr/bin/env bash
# Makes the numbers of results/ again, from two files of TinyStories, or from a download:
#
#     experiments/run_all.sh TRAIN VALID        in the folder of train.py
#
# Each line of the list below makes one file in results/data, which takes about as many minutes on
# one core of a CPU as it says. A file that is there is not made again, and no run in out/ is
# trained again, so it can be stopped at any time and goes on where it was. To make a number anew,
# delete its file. Two files need a GPU, and two need clones of others' code; without these they
# stay as they are. All of it takes some 21 hours of one core. Two cores share the work best with
# two copies of a list cut in two, and with OMP_NUM_THREADS=1.
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
        infill) echo --mode=aogpt --variant=infill ;;
        *) echo --mode="$1" ;;
    esac
}

learn() {       # learn GROUP NAME STEPS SEED FLAGS: out/GROUP/NAME-SEED, 1.4M weights, stories
    run "$1/$2-$4" --preset=laptop --data=stories --batch_size=8 --n_embd=128 --n_hidden=352 \
        --eval_interval=625 --max_steps="$3" --seed="$4" $(flags_of "${2%%-*}") "${@:5}"
}

SELDOM="--eval_interval=1250 --eval_windows=40"     # of runs whose curve nobody looks at

help_flags() {  # help_flags HELP: against overfitting, or smaller batches
    case $1 in
        dropout) echo --dropout=0.3 ;;
        both) echo --dropout=0.3 --token_noise=0.3 ;;
        eight) echo --batch_size=8 ;;
    esac
}

few() {         # few MODE HELP STEPS SEED: on 500 stories, read again and again
    learn few "$1-$2-$3" "$3" "$4" --train_stories=500 $(help_flags "$2")
}

large() {       # large MODE HELP STEPS SEED: the same with 28M parameters, 32 windows a step
    run "large/$1-$2-$3-$4" --preset=laptop --data=stories --train_stories=500 --batch_size=32 \
        --n_layer=8 --n_head=8 --n_embd=512 --n_hidden=1408 --lr=0.002 --eval_interval=250 \
        --max_steps="$3" --seed="$4" $(flags_of "$1") $(help_flags "$2")
}

folders() { echo "$@" | tr " " ,; }

[ -e data/toy ] || python prepare_data.py
[ -e data/unseen ] || python -m experiments.texts ${2:+--train="$1" --valid="$2"}

# How long should a block be? One of 48 tokens, or of 256 of real text, is all of the window.
in_blocks() {   # in_blocks N
    [ $1 = 48 ] || [ $1 = 256 ] || echo --variant=blocks --block_length=$1
}
dial() {        # dial N SEED
    for mode in mdlm aogpt; do
        toy dial-toy/$mode-$1-$2 --mode=$mode --seed=$2 $(in_blocks $1)
    done
}
for N in 1 2 4 8 16 48; do dial $N 1; done
for seed in 2 3; do
    for N in 1 8 16 48; do dial $N $seed; done
done
made dial 30 python -m experiments.dial --plot=results/figures/dial.png
for mode in mdlm aogpt; do
    for N in 1 16 256; do learn dial-stories $mode-$N 1250 1 $(in_blocks $N); done
done
made dial-stories 10 python -m experiments.dial --text=stories \
    --plot=results/figures/dial-stories.png

# What does a sampler lose by its own rule, and what by its network?
toy toy/ar --mode=ar
made denoiser 120 python -m experiments.denoiser ar=out/toy/ar mdlm=out/dial-toy/mdlm-48-1 \
    blocks=out/dial-toy/mdlm-8-1 aogpt=out/dial-toy/aogpt-48-1 \
    --seconds=64 --plot=results/figures/denoiser.png

# Where does masked diffusion win, and is it by the order in which it writes? Each mode has the
# steps, batch and rate of the others; of the GPT two more rates and a deeper network are tried.
sudoku() {      # sudoku NAME SEED MODE PRESET FLAGS …: out/sudoku/NAME-SEED
    run "sudoku/$1-$2" --mode="$3" --preset="$4" --max_steps=2000 --seed="$2" "${@:5}"
}
for seed in 1 2 3; do
    sudoku mdlm $seed mdlm sudoku
    sudoku mdlm-short $seed mdlm sudoku --max_steps=1000
    sudoku aogpt $seed aogpt sudoku
    sudoku pairs $seed ar sudoku-pairs
    sudoku taught $seed aogpt sudoku-moves
done
sudoku masked_ce 1 mdlm sudoku --objective=masked_ce
sudoku ar 1 ar sudoku
sudoku pairs-deep 1 ar sudoku-pairs --n_layer=4
for rate in 2 8; do sudoku pairs-$rate 1 ar sudoku-pairs --lr=${rate}e-3; done
for seed in 1 2 3; do
    folders=$(cd out/sudoku; echo *-$seed)
    made sudoku-$seed 20 python sudoku.py --risks=0.001,0.01 \
        $(for folder in $folders; do echo "${folder%-*}=out/sudoku/$folder"; done)
done

# The moving pictures of README.
if [ ! -e results/figures/modes.svg ]; then
    mkdir -p out/written
    picture() { python sample.py --num_samples=4 --out=out/written/toy-$1.jsonl "${@:2}"; }
    picture ar --out_dir=out/toy/ar
    picture mdlm --out_dir=out/dial-toy/mdlm-48-1
    picture aogpt --out_dir=out/dial-toy/aogpt-48-1 --order=random --sampler=drafts --draft=8
    python -m extras.show --picture=out/written/modes.svg ar=out/written/toy-ar.jsonl \
        mdlm=out/written/toy-mdlm.jsonl aogpt=out/written/toy-aogpt.jsonl
    mv out/written/modes.svg results/figures/modes.svg
fi
if [ ! -e results/figures/sudoku.svg ]; then
    solve() {
        python sample.py --out_dir=out/sudoku/mdlm-1 --num_samples=1 --temperature=0 "$@" \
            --prompt="_ 3 _ _ _ _ _ _ _ 3 _ 6 _ _ 4 _ 6 _ _ _ _ 5 3 _ 2 _ 6 4 5 _ _ _ _ _ _ 1"
    }
    solve --sampler=adaptive --risk=0 --out=out/written/surest.jsonl
    solve --order=left_to_right --out=out/written/left-to-right.jsonl
    python -m extras.show --picture=results/figures/sudoku.svg \
        "masked diffusion=out/written/surest.jsonl" \
        "the same network=out/written/left-to-right.jsonl"
fi

# Does masked diffusion win when stories are few? Each help is tried with seed 1. What has the
# lowest loss on the stories that choose, with help and without, gets more seeds.
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

# The same with 28M parameters, for a GPU: seven minutes of an H200 if a dozen runs share it, and
# days of a CPU.
if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    for steps in 32 125 250; do large ar plain $steps 1; done
    large ar eight 250 1
    large ar dropout 250 1
    for steps in 125 500 1000; do large ar both $steps 1; done
    large masked_ce plain 2000 1
    for steps in 1000 2000; do large masked_ce eight $steps 1; done
    for steps in 2000 4000; do large masked_ce dropout $steps 1; done
    for steps in 500 1000; do large aogpt plain $steps 1; done
    for steps in 500 1000 2000; do large aogpt dropout $steps 1; done
    for seed in 1 2 3; do
        large ar plain 64 $seed
        large ar both 250 $seed
        large masked_ce plain 500 $seed
        large masked_ce dropout 1000 $seed
        large aogpt plain 250 $seed
    done
    made large 1 python -m experiments.held_out --runs="$(folders out/large/*)"
    made speed-gpu 2 python bench.py
fi

# Which learns real text best, how much more training does diffusion need, and what is slack? In
# 5,000 steps a GPT overfits, so it has 2,500.
for seed in 1 2 3; do
    for name in ar mdlm masked_ce aogpt; do learn stories $name 1250 $seed; done
done
for seed in 1 2 3; do
    seldom=$([ $seed = 1 ] || echo $SELDOM)     # the figure has the curves of seed 1
    for name in mdlm masked_ce aogpt; do learn long $name 5000 $seed $seldom; done
    learn steps ar-2500 2500 $seed $seldom
done
for steps in 150 300 600; do learn steps ar-$steps $steps 1; done
made real 10 python -m experiments.held_out --draws=4 --plot=results/figures/real.png \
    --runs="$(folders out/stories/{ar,mdlm,masked_ce,aogpt}-{1,2,3} \
    out/long/{mdlm,masked_ce,aogpt}-{1,2,3} out/steps/ar-*)"
for lr in 0.002 0.008 0.016; do
    for name in ar mdlm masked_ce aogpt; do learn rates $name-$lr 1250 1 --lr=$lr; done
done
made rates 5 python -m experiments.held_out --draws=4 \
    --runs="$(folders out/stories/{ar,mdlm,masked_ce,aogpt}-1 out/rates/*)"
made orders 50 python -m experiments.held_out --orders=4 --windows=60 \
    --runs="$(folders out/long/{mdlm,masked_ce,aogpt}-1 out/steps/ar-2500-1)"

# What is gained by seeing both sides of a blank, and is a GPT that fills in the middle enough?
toy toy/infill --mode=aogpt --variant=infill
made blanks-toy 8 python -m experiments.infill --data=toy --windows=100 \
    --models=out/toy/ar,out/toy/infill,out/dial-toy/aogpt-48-1,out/dial-toy/mdlm-48-1
learn steps infill-2500 2500 1
made blanks-stories 35 python -m experiments.infill --data=unseen --windows=380 \
    --plot=results/figures/blanks.png \
    --models="$(folders out/steps/{ar,infill}-2500-1 out/long/{aogpt,masked_ce}-1)"

# Which stories are most like real ones?
write() {       # write NAME RUN FLAGS …: out/written/NAME.jsonl, 300 stories of out/RUN
    local file=out/written/$1.jsonl
    mkdir -p out/written
    [ -e "$file" ] || python sample.py --out_dir=out/$2 --num_samples=300 --length=128 --out=$file \
        "${@:3}"
}
write ar steps/ar-2500-1
write mdlm long/masked_ce-1
write aogpt long/aogpt-1
write aogpt-left-to-right long/aogpt-1 --order=left_to_right
write ar-by-the-paper steps/ar-2500-1 --protocol=paper
write mdlm-by-the-paper long/masked_ce-1 --protocol=paper
made diversity 2 python -m extras.diversity --data=unseen --judge=out/stories/ar-2 \
    $(for name in ar mdlm aogpt aogpt-left-to-right ar-by-the-paper mdlm-by-the-paper; do
        echo $name=out/written/$name.jsonl
    done)

# What does each of the paper's differences do, alone? The three seeds of ar lie so close together
# that it has one here; mdlm has three where a difference is large or often named.
differ() {      # differ RUN SEEDS FLAGS …: out/paper/RUN-SEED
    for seed in $2; do learn paper $1 1250 $seed $SELDOM "${@:3}"; done
}
for mode in ar mdlm; do
    seeds=1
    if [ $mode = mdlm ]; then seeds="1 2 3"; fi
    differ $mode-vector "$seeds" --variant=paper --shared_init=false
    differ $mode-adamw "$seeds" --optimizer=adamw
    differ $mode-windows "$seeds" --windows=paper
    differ $mode-target "$seeds" --variant=paper --target_embedding=false
    differ $mode-schedule 1 --warmup=25 --final_lr=0.05
done
differ ar-init 1 --variant=paper --init=paper --shared_init=false
differ mdlm-init "1 2 3" --variant=paper --init=paper --shared_init=false --tie_head=false
differ mdlm-loss "1 2 3" --variant=paper --objective=masked_ce --schedule=cosine
differ mdlm-time 1 --variant=paper --time_embedding=add
differ mdlm-untied 1 --variant=paper --tie_head=false
ALL="--variant=paper --optimizer=adamw --windows=paper --init=paper --shared_init=false
    --target_embedding=false --warmup=25 --final_lr=0.05"
differ ar-all 1 $ALL
differ mdlm-all "1 2 3" $ALL --tie_head=false --time_embedding=add --objective=masked_ce \
    --schedule=cosine
for lr in 0.002 0.008; do
    for mode in ar mdlm; do differ $mode-adamw-$lr 1 --optimizer=adamw --lr=$lr; done
done
made paper 12 python -m experiments.held_out --draws=2 \
    --runs="$(folders out/stories/{ar,mdlm,masked_ce}-{1,2,3} out/paper/*)"

# Why does masked_ce lower the bound faster than the bound itself?
learn steps mdlm-150 150 1
made gradient 3 python -m experiments.gradient \
    early=out/steps/mdlm-150-1 late=out/stories/mdlm-1

# Is our GPT better than nanoGPT's own, on its own text, and why? The first needs nanoGPT's code.
[ -e data/shakespeare/meta.json ] || python prepare_data.py --dataset=shakespeare
if [ -e nanoGPT ]; then
    made shakespeare 40 python -m experiments.shakespeare --table=own_code
fi
made shakespeare-taken 75 python -m experiments.shakespeare --table=take_away

# Is nanoGPT's code as fast as ours, and the paper's? This needs clones of both, of
# github.com/karpathy/nanoGPT and github.com/caiovicentino/arche, and a quiet machine.
if [ -e nanoGPT ] && [ -e arche ]; then
    made speed-others 4 env OMP_NUM_THREADS=2 python -m experiments.others --device=cpu --repeats=12
fi

python -m experiments.report
echo "computing time of all programs:"
times
