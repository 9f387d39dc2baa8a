#!/usr/bin/env bash
# Makes the numbers of results/ again, in the folder of train.py:
#
#     experiments/run_all.sh --list             the groups, what they answer, and how long they take
#     experiments/run_all.sh                    all of them, and the tables of results/ from them
#     experiments/run_all.sh few real           these groups
#     experiments/run_all.sh few --again        measures although the numbers are there
#
# results/data has a file for each page, and in it what each command measured, under a name. A group
# trains the runs that it needs, and then each `made` measures and puts what it found there. No run
# in out/ is trained again, and nothing is measured again that is there, so it can be stopped at any
# time and goes on where it was. With --again the files go to results/again, to be compared with
# those of results/data. The stories are downloaded; who has the corpus as files calls
# `python -m experiments.texts --corpus=FILES` before.
#
# Two cores share the work best with two groups at a time, each with OMP_NUM_THREADS=1.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
data=results/data figures=results/figures again=

list() {
    cat <<END
group        train  measure  what it answers
cost           200      100  What does a text cost in each way of writing it?
uniform         70       30  What does noise buy that can be taken back?
sudoku         115       60  Where does masked diffusion win, and is it by the order of writing?
sudoku-nine     80       15  How many 9 x 9 Sudokus are solved after an hour and a quarter?
board            8        1  How near to the law does a budget bring masked diffusion?
pictures        15        1  The moving pictures of README.
few            285       45  Does masked diffusion win when stories are few?
real           190       10  Which learns real text best, and how much more training does it take?
rates           65        5  Is that so with other learning rates?
blanks          50       45  What is gained by seeing both sides of a blank?
diversity       35       10  Which stories are most like real ones?
overfits        20        1  After how many epochs does a GPT overfit?
paper          170       12  What does each of the paper's differences do, alone?
learning       410       60  Which mask ratios should masked diffusion learn from?
shakespeare      0       40  Is our GPT better than nanoGPT's own? Needs a clone of it.
speed            0        1  How fast is training? Only on a GPU.

All minutes are rough, and of one core. Those of measuring and of few are from logs; the others are
reckoned from the steps, about 0.14 s each on stories and 0.08 s on the toy, and from a minute a run
to start and evaluate. Groups share runs, so all of them take some 25 hours, and not the sum. The
download is not counted.

Some numbers of the pages are of groups that are gone. Clone the repository at commit 04c8d2c to
make uniform noise again that is told the time or learns from other weights, and at d012157 the
others: openings, mapping, gradient, shakespeare (one difference at a time), speed (beside others'
code), and what learning has there besides.
END
}

# ---- What is measured, and one run ---------------------------------------------------------------

made() {        # made PAGE NAME COMMAND …: NAME in PAGE.json, by this command
    local file=$data/$1.json part=$data/$2.part.json
    if grep -qs "^ \"$2\": {" $file && [ ! "$again" ]; then return; fi
    echo "== $2"
    "${@:3}" --json=$part
    python -c "$PUT" $file $2 $part
    rm $part
}

PUT='
import json, os, sys
file, name, part = sys.argv[1:]
found = json.load(open(file)) if os.path.exists(file) else {}
found[name] = json.load(open(part))
json.dump(found, open(file, "w"), indent=1)
'

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

# The toy as it was trained before its preset had Muon.
OLD_TOY="--optimizer=adamw --lr=2e-3 --warmup=100 --max_steps=2000 --eval_windows=1024"

toy() {         # toy NAME FLAGS …: on the toy
    [ -e data/toy ] || python prepare_data.py
    run "$1" --preset=toy $OLD_TOY "${@:2}"
}

flags_of() {    # flags_of NAME: masked_ce is mdlm with another objective; no preset chooses one
    case $1 in
        mdlm) echo --mode=mdlm --objective=nelbo ;;
        masked_ce) echo --mode=mdlm --objective=masked_ce ;;
        infill) echo --mode=aogpt --variant=infill ;;
        *) echo --mode="$1" ;;
    esac
}

real_text() { [ -e data/unseen ] || python -m experiments.texts; }

learn() {       # learn FOLDER NAME STEPS SEED FLAGS: out/FOLDER/NAME-SEED, 1.4M weights, stories
    real_text
    run "$1/$2-$4" --preset=laptop --data=stories --batch_size=8 --n_embd=128 --n_hidden=352 \
        --eval_interval=625 --max_steps="$3" --seed="$4" $(flags_of "${2%%-*}") "${@:5}"
}

SELDOM="--eval_interval=1250 --eval_windows=40"     # of runs whose curve nobody looks at

folders() { echo "$@" | tr " " ,; }

has_gpu() { python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; }

# ---- Runs that several groups need ---------------------------------------------------------------

sudoku() {      # sudoku NAME SEED MODE PRESET FLAGS …: out/sudoku/NAME-SEED
    run "sudoku/$1-$2" --mode="$3" --preset="$4" --max_steps=2000 --seed="$2" "${@:5}"
}
moves() {       # moves NAME SEED FLAGS …: out/moves/NAME-SEED
    run "moves/$1-$2" --mode=ar --preset=sudoku-moves --variant=answers --seed="$2" "${@:3}"
}
seldom() { [ $1 = 1 ] || echo $SELDOM; }            # the figure has the curves of seed 1
short() { learn stories $1 1250 $2; }               # short NAME SEED
long() { learn long $1 5000 $2 $(seldom $2); }      # long NAME SEED
gpt() { learn steps ar-$1 $1 $2 $(seldom $2); }     # gpt STEPS SEED
gpt_in_proportion() {       # the same, with a warm-up of as large a share as 1,250 steps have
    learn gpt ar-$1 $1 $2 --eval_windows=100 --warmup=$(($1 * 8 / 100))
}

in_bell() { [ $1 = 1 ] || echo --variant=bell --bell=$1; }     # 1 is model.py's own choice

recipe() {      # recipe NAME STEPS SEED FLAGS …: out/learning/NAME-SEED, or out/learning-long
    local folder=learning
    [ $2 = 1250 ] || folder=learning-long
    learn $folder $1 $2 $3 --eval_windows=100 "${@:4}"
}

# ---- The groups ----------------------------------------------------------------------------------

price() { made sampling cost-$1 python -m experiments.cost "${@:2}"; }      # price NAME FLAGS …

written() {     # written NAME RUN FLAGS …: stories of the toy
    mkdir -p out/written
    made sampling written-$1 python sample.py --out_dir=out/toy-$2 --num_samples=1000 \
        --out=out/written/toy-$1.jsonl "${@:3}"
}

# The others are a GPT and an any-order GPT. Of stories few ways are priced on many windows, to say
# who is ahead, and all ways on few windows, to say what saved passes cost, early and late.
group_cost() {
    local few=
    price law law=law
    for seed in 1 2 3; do
        for mode in ar mdlm aogpt; do
            run toy-$mode-$seed --preset=toy --mode=$mode --seed=$seed
            run sudoku-$mode-$seed --preset=sudoku --mode=$mode --seed=$seed
        done
        written mdlm-$seed mdlm-$seed
        price toy-$seed $few mdlm=out/toy-mdlm-$seed
        few=--few=true
        price others-toy-$seed ar=out/toy-ar-$seed aogpt=out/toy-aogpt-$seed
        price sudoku-$seed mdlm=out/sudoku-mdlm-$seed
        price sudoku-given-$seed mdlm=out/sudoku-mdlm-$seed --givens=12
        price others-sudoku-$seed ar=out/sudoku-ar-$seed aogpt=out/sudoku-aogpt-$seed
        for N in 8 16; do
            run toy-blocks-$N-$seed --preset=toy --mode=mdlm --variant=blocks --block_length=$N \
                --seed=$seed
            price blocks-$N-$seed mdlm=out/toy-blocks-$N-$seed
        done
        for mode in ar mdlm aogpt; do
            run plays-$mode-$seed --preset=shakespeare --mode=$mode --seed=$seed
        done
        price shakespeare-$seed mdlm=out/plays-mdlm-$seed ar=out/plays-ar-$seed \
            aogpt=out/plays-aogpt-$seed
        recipe masked_ce-4 1250 $seed $(in_bell 4)
        for name in ar aogpt; do short $name $seed; done
        price stories-$seed --data=unseen --windows=24 --few=true \
            mdlm=out/learning/masked_ce-4-$seed ar=out/stories/ar-$seed \
            aogpt=out/stories/aogpt-$seed
    done
    short mdlm 1
    price nelbo-1 --data=unseen --windows=12 \
        mdlm=out/learning/masked_ce-4-1 nelbo=out/stories/mdlm-1
    for seed in 1 2 3; do
        recipe masked_ce-4 5000 $seed $(in_bell 4)
        gpt 2500 $seed
        price long-$seed --data=unseen --windows=12 \
            mdlm=out/learning-long/masked_ce-4-$seed ar=out/steps/ar-2500-$seed
    done
    written confidence-24 mdlm-1 --sampler=confidence --steps=24
    written drafts aogpt-1 --sampler=drafts --draft=48
    python -c 'import sys; from experiments.cost import draw_costs; draw_costs(*sys.argv[1:])' \
        $data/sampling.json $figures/cost.png
}

noise() {       # noise DATA KIND RATE SEED FLAGS …: out/uniform/DATA-KIND-RATE-SEED
    local kind=--variant=uniform
    if [ $2 = masked ]; then kind=--objective=nelbo; fi
    run uniform/$1-$2-$3-$4 --preset=$1 --mode=mdlm $kind --lr=${3}e-3 --seed=$4 "${@:5}"
}

noises() {      # noises NAME RUN …: measures out/uniform/RUN, and calls it RUN
    made sampling uniform-$1 python -m experiments.uniform \
        $(for run in "${@:2}"; do echo $run=out/uniform/$run; done)
}

# Both noises have the same steps and rates, of which seeds 1 and 5 choose one, and off the toy
# seed 1. On the toy three other seeds are measured. Then masked diffusion reads 40 stories, its own
# and real ones, in hindsight.
group_uniform() {
    made sampling uniform-law python -m experiments.uniform law=law
    for kind in masked uniform; do
        for rate in 0.75 1.5 3 6; do
            for seed in 1 5; do noise toy $kind $rate $seed; done
        done
        for rate in 1 2 4 8 16; do noise sudoku $kind $rate 1; done
        for rate in 0.5 1 2; do noise shakespeare $kind $rate 1; done
    done
    for seed in 2 3 4; do
        noise toy masked 3 $seed
        noise toy uniform 1.5 $seed
    done
    made sampling uniform-rates python -m experiments.uniform --num_samples=0 \
        $(for run in out/uniform/toy-*; do echo $(basename $run)=$run; done)
    noises toy toy-masked-3-{2,3,4} toy-uniform-1.5-{2,3,4}
    noises sudoku sudoku-masked-8-1 sudoku-uniform-2-1
    noises shakespeare shakespeare-masked-0.5-1 shakespeare-uniform-1-1
    noise toy uniform-long 1.5 1 --max_steps=4800
    noises long toy-uniform-long-1.5-1
    recipe masked_ce-4 5000 1 $(in_bell 4)
    local own=out/written/own.jsonl real=out/written/real.txt model=out/learning-long/masked_ce-4-1
    mkdir -p out/written
    [ -e $own ] || python sample.py --out_dir=$model --num_samples=40 --out=$own
    awk 'NR == 1, /<\|endoftext\|>/ && ++n == 40' data/stories-unseen.txt > $real
    for text in $own $real; do
        made sampling disowned-$(basename ${text%.*}) python -m extras.compare mdlm=$model \
            --text=$text --hindsight
    done
}

# Each mode has the steps, batch and rate of the others, and two more rates are tried for each.
group_sudoku() {
    for seed in 1 2 3; do
        sudoku mdlm $seed mdlm sudoku
        sudoku mdlm-short $seed mdlm sudoku --max_steps=1000
        sudoku aogpt $seed aogpt sudoku
        sudoku pairs $seed ar sudoku-pairs
        sudoku taught $seed aogpt sudoku-moves
    done
    sudoku masked_ce 1 mdlm sudoku --objective=masked_ce
    sudoku ar 1 ar sudoku
    for rate in 2 8; do
        sudoku mdlm-$rate rate mdlm sudoku --lr=${rate}e-3 --seed=1
        sudoku aogpt-$rate rate aogpt sudoku --lr=${rate}e-3 --seed=1
        sudoku pairs-$rate rate ar sudoku-pairs --lr=${rate}e-3 --seed=1
    done
    sudoku pairs-deep controls ar sudoku-pairs --n_layer=4 --seed=1
    sudoku taught-first controls aogpt sudoku-moves --variant=taught --taught=left_to_right --seed=1
    made sudoku sudoku-controls python -m extras.solve --losses=false --risks=0.001 \
        $(sudokus controls)
    for seed in 1 2 3; do
        made sudoku sudoku-$seed python -m extras.solve --risks=0.001,0.01 $(sudokus $seed)
    done
    made sudoku sudoku-rates python -m extras.solve --givens=12 --risks=0.001 --losses=false \
        $(sudokus rate) mdlm-4=out/sudoku/mdlm-1 aogpt-4=out/sudoku/aogpt-1 \
        pairs-4=out/sudoku/pairs-1
    for seed in 1 2 3; do moves moves $seed --max_steps=2000; done
    for seed in 1 2 3; do
        made sudoku sudoku-moves-$seed python -m extras.solve moves=out/moves/moves-$seed
    done
    moves moves-16 1 --max_steps=16000
    made sudoku sudoku-moves-long python -m extras.solve moves=out/moves/moves-16-1
    run moves/pairs-16-1 --mode=ar --preset=sudoku-pairs --max_steps=16000 --seed=1
    made sudoku sudoku-pairs-long python -m extras.solve pairs=out/moves/pairs-16-1
}

# The larger data set holds out what the usual one, data/sudoku-9, does, and so its puzzles are of
# grids that training has not.
group_sudoku-nine() {
    [ -e data/sudoku-9-large ] || python prepare_data.py --dataset=sudoku-9 --name=sudoku-9-large \
        --max_tokens=24000000
    run sudoku/nine --mode=mdlm --preset=sudoku-9 --data=sudoku-9-large --max_steps=12000 \
        --eval_interval=1000 --seed=1337
    made sudoku sudoku-9 python -m extras.solve mdlm=out/sudoku/nine --num_puzzles=300 --risks=0.001
}

sudokus() {     # sudokus SUFFIX: NAME=out/sudoku/NAME-SUFFIX for each
    for folder in out/sudoku/*-"$1"; do echo "$(basename "${folder%-*}")=$folder"; done
}

picture() { python sample.py --num_samples=4 --out=out/written/toy-$1.jsonl "${@:2}"; }

solve() {
    python sample.py --out_dir=out/sudoku/mdlm-1 --num_samples=1 --temperature=0 "$@" \
        --prompt="_ 3 _ _ _ _ _ _ _ 3 _ 6 _ _ 4 _ 6 _ _ _ _ 5 3 _ 2 _ 6 4 5 _ _ _ _ _ _ 1"
}

group_pictures() {
    mkdir -p out/written
    if [ ! -e $figures/modes.svg ]; then
        toy toy/ar --mode=ar
        toy dial-toy/mdlm-48-1 --mode=mdlm
        toy dial-toy/aogpt-48-1 --mode=aogpt
        picture ar --out_dir=out/toy/ar
        picture mdlm --out_dir=out/dial-toy/mdlm-48-1
        picture aogpt --out_dir=out/dial-toy/aogpt-48-1 --order=random --sampler=drafts --draft=8
        python -m extras.show --picture=out/written/modes.svg \
            "ar, left to right, 48 steps=out/written/toy-ar.jsonl" \
            "mdlm, random order, 48 steps=out/written/toy-mdlm.jsonl" \
            "aogpt, random order, drafts of 8=out/written/toy-aogpt.jsonl"
        mv out/written/modes.svg $figures/modes.svg
    fi
    if [ ! -e $figures/sudoku.svg ]; then
        sudoku mdlm 1 mdlm sudoku
        solve --sampler=adaptive --risk=0 --out=out/written/surest.jsonl
        solve --order=left_to_right --out=out/written/left-to-right.jsonl
        python -m extras.show --picture=$figures/sudoku.svg \
            "masked diffusion, surest first=out/written/surest.jsonl" \
            "the same network, left to right order=out/written/left-to-right.jsonl"
    fi
}

help_flags() {  # help_flags HELP: against overfitting, or smaller batches
    case $1 in
        dropout) echo --dropout=0.3 ;;
        both) echo --dropout=0.3 --token_noise=0.3 ;;
    esac
}

few() {         # few MODE HELP STEPS SEED: on 500 stories, read again and again
    learn few "$1-$2-$3" "$3" "$4" --train_stories=500 $(help_flags "$2")
}

# Each help is tried with seed 1. What has the lowest loss on the stories that choose, with help and
# without, gets more seeds.
group_few() {
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
    made real few python -m experiments.held_out --plot=$figures/few.png \
        --runs="$(folders out/few/*)"
    for seed in 1 2; do
        price few-$seed --data=unseen --windows=24 --few=true \
            mdlm=out/few/masked_ce-dropout-5000-$seed ar=out/few/ar-both-1250-$seed \
            mdlm-plain=out/few/masked_ce-plain-2500-$seed ar-plain=out/few/ar-plain-250-$seed
    done
}

# In 5,000 steps a GPT overfits, so it has 2,500.
group_real() {
    for seed in 1 2 3; do
        for name in ar mdlm masked_ce aogpt; do short $name $seed; done
        for name in mdlm masked_ce aogpt; do long $name $seed; done
        gpt 2500 $seed
    done
    for steps in 150 300 600; do gpt $steps 1; done
    made real real python -m experiments.held_out --draws=4 --plot=$figures/real.png \
        --runs="$(folders out/stories/{ar,mdlm,masked_ce,aogpt}-{1,2,3} \
        out/long/{mdlm,masked_ce,aogpt}-{1,2,3} out/steps/ar-*)"
}

group_rates() {
    for name in ar mdlm masked_ce aogpt; do
        short $name 1
        for lr in 0.002 0.008 0.016; do learn rates $name-$lr 1250 1 --lr=$lr; done
    done
    made real rates python -m experiments.held_out --draws=4 \
        --runs="$(folders out/stories/{ar,mdlm,masked_ce,aogpt}-1 out/rates/*)"
    # Is the gain of equal weights and a = 4 one of the rate?
    for lr in 0.002 0.008 0.016; do
        learn rates-1250 masked_ce-4-$lr 1250 1 --lr=$lr --eval_windows=100 $(in_bell 4)
    done
    made learning rates-1250 python -m experiments.held_out --draws=2 \
        --runs="$(folders out/rates-1250/*)"
}

# Is a GPT that fills in the middle enough?
group_blanks() {
    toy toy/ar --mode=ar
    toy toy/infill --mode=aogpt --variant=infill
    for mode in mdlm aogpt; do toy dial-toy/$mode-48-1 --mode=$mode; done
    made blanks blanks-toy python -m experiments.blanks --data=toy --windows=100 \
        --models=out/toy/ar,out/toy/infill,out/dial-toy/aogpt-48-1,out/dial-toy/mdlm-48-1
    gpt 2500 1
    learn steps infill-2500 2500 1
    for name in masked_ce aogpt; do long $name 1; done
    made blanks blanks-stories python -m experiments.blanks --data=unseen --windows=380 \
        --plot=$figures/blanks.png \
        --models="$(folders out/steps/{ar,infill}-2500-1 out/long/{aogpt,masked_ce}-1)"
}

world() {       # world PRESET OBJECTIVE A SEED: out/PRESET-bell/OBJECTIVE-A-SEED
    local old=
    if [ $1 = toy ]; then old=$OLD_TOY; fi
    run $1-bell/$2-$3-$4 --preset=$1 $old --seed=$4 --eval_windows=400 $(flags_of $2) $(in_bell $3)
}

# Which shares of hidden tokens should masked diffusion learn from, and how should they count? What
# results/learning.md says of several masks of a window, a tenth of uniform ratios, other sizes and
# batches is of commit d012157.
group_learning() {
    group_real
    for seed in 1 2 3; do recipe masked_ce-4 1250 $seed $(in_bell 4); done
    for seed in 1 2 3; do recipe masked_ce-4 5000 $seed $(in_bell 4); done
    for seed in 1 2 3; do recipe masked_ce-4-adamw 1250 $seed $(in_bell 4) --optimizer=adamw; done
    for seed in 1 2 3; do recipe masked_ce-8 1250 $seed $(in_bell 8); done
    recipe masked_ce-8 5000 1 $(in_bell 8)
    for a in 2 16; do recipe masked_ce-$a 1250 1 $(in_bell $a); done
    for a in 2 4; do recipe mdlm-$a 1250 1 $(in_bell $a); done
    for steps in 150 300 600; do
        for seed in 1 2 3; do gpt_in_proportion $steps $seed; done
    done
    made learning learning python -m experiments.held_out --draws=4 --runs="$(folders \
        out/learning/masked_ce-{4,8}-{1,2,3} out/learning/masked_ce-{2,16}-1 \
        out/learning/mdlm-{2,4}-1 out/learning-long/masked_ce-4-{1,2,3} \
        out/learning-long/masked_ce-8-1)"
    made learning learning-adamw python -m experiments.held_out --draws=4 \
        --runs="$(folders out/learning/masked_ce-4-adamw-{1,2,3})"
    made learning gpt python -m experiments.held_out --runs="$(folders out/gpt/*)"
    for seed in 1 2 3; do
        for preset in toy sudoku shakespeare; do
            world $preset mdlm 1 $seed
            world $preset masked_ce 4 $seed
        done
    done
    for preset in toy sudoku shakespeare; do
        world $preset masked_ce 1 1
        world $preset mdlm 4 1
    done
    made learning worlds python -m experiments.learning --windows=600 \
        --runs="$(folders out/{toy,sudoku,shakespeare}-bell/*)"
    made blanks blanks-bell python -m experiments.blanks --data=unseen --windows=380 \
        --models=out/learning-long/masked_ce-4-1
    made learning shares python -m experiments.learning --data=unseen \
        --runs="$(folders out/learning/{mdlm,masked_ce}-4-1 out/stories/{mdlm,masked_ce}-1)"
}

write() {       # write NAME RUN FLAGS …: out/written/NAME.jsonl, 300 stories of out/RUN
    local file=out/written/$1.jsonl
    mkdir -p "$(dirname "$file")"
    [ -e "$file" ] || python sample.py --out_dir=out/$2 --num_samples=300 --length=128 --out=$file \
        "${@:3}"
}

group_diversity() {
    gpt 2500 1
    for name in masked_ce aogpt; do long $name 1; done
    short ar 2      # the judge
    write ar steps/ar-2500-1
    write mdlm long/masked_ce-1
    write aogpt long/aogpt-1
    write aogpt-left-to-right long/aogpt-1 --order=left_to_right
    write ar-by-the-paper steps/ar-2500-1 --temperature=0.8 --full_length --length=128 --prompt=Once
    write mdlm-by-the-paper long/masked_ce-1 --sampler=confidence --by_the_paper --temperature=0.8 \
        --final_temperature=0.32 --repetition_penalty=1.3 --full_length --length=128
    made the-paper diversity python diversity.py --data=unseen --judge=out/stories/ar-2 \
        $(for name in ar mdlm aogpt aogpt-left-to-right ar-by-the-paper mdlm-by-the-paper; do
            echo $name=out/written/$name.jsonl
        done)
}

# The text is that of real text, which is read eight times.
group_overfits() {
    learn long ar 5000 1 --eval_interval=125 --eval_windows=100
    made real overfits python -m experiments.held_out --runs=out/long/ar-1
}

differ() {      # differ RUN SEEDS FLAGS …: out/paper/RUN-SEED
    for seed in $2; do learn paper $1 1250 $seed $SELDOM "${@:3}"; done
}

ALL="--variant=paper --optimizer=adamw --windows=paper --init=paper --shared_init=false
    --target_embedding=false --warmup=25 --final_lr=0.05"

# The three seeds of ar lie so close together that it has one here; mdlm has three where a
# difference is large or often named.
group_paper() {
    for name in ar mdlm masked_ce; do
        for seed in 1 2 3; do short $name $seed; done
    done
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
    differ ar-all 1 $ALL
    differ mdlm-all "1 2 3" $ALL --tie_head=false --time_embedding=add --objective=masked_ce \
        --schedule=cosine
    for lr in 0.002 0.008; do
        for mode in ar mdlm; do differ $mode-adamw-$lr 1 --optimizer=adamw --lr=$lr; done
    done
    made paper paper python -m experiments.held_out --draws=2 \
        --runs="$(folders out/stories/{ar,mdlm,masked_ce}-{1,2,3} out/paper/*)"
}

# The same multiply-adds for each.
group_board() {
    run toy-mdlm-1 --preset=toy --mode=mdlm --seed=1
    run board/adamw --preset=toy --mode=mdlm --optimizer=adamw --lr=2e-3 --warmup=100
    run board/bell --preset=toy --mode=mdlm --objective=masked_ce --variant=bell
    made learning board python bench.py --board=out/toy-mdlm-1,out/board/adamw,out/board/bell
}

# It needs a clone of github.com/karpathy/nanoGPT, and trains what it measures.
group_shakespeare() {
    [ -e data/shakespeare/meta.json ] || python prepare_data.py --dataset=shakespeare
    if [ ! -e nanoGPT ]; then cannot_make shakespeare "a clone of nanoGPT"; return; fi
    made shakespeare shakespeare python -m experiments.shakespeare
}

group_speed() {
    if ! has_gpu; then cannot_make speed-gpu "a GPU"; return; fi
    made shakespeare speed-gpu python bench.py
}

# ---- What was asked for --------------------------------------------------------------------------

groups=
for argument; do
    case $argument in
        --list) list; exit ;;
        --again) again=yes data=results/again figures=results/again ;;
        *)
            if ! declare -F "group_$argument" > /dev/null; then
                echo "run_all.sh: there is no group $argument; --list shows them all" >&2
                exit 2
            fi
            groups+=" $argument" ;;
    esac
done
mkdir -p $data $figures
all=$(list | sed -n '2,/^$/s/ .*//p')
for group in ${groups:-$all}; do
    echo "==== $group"
    group_$group
done
if [ ! "$groups" ] && [ ! "$again" ]; then python -m experiments.report; fi
echo "computing time of all programs:"
times
