#!/usr/bin/env bash
# The commands behind results/, in the order in which they must run, from the project's folder:
#
#     bash experiments/results.sh toy
#     bash experiments/results.sh laptop FOLDER   FOLDER holds real text, train.txt and valid.txt; hours
#     bash experiments/results.sh own FOLDER      after toy and laptop; an hour
#     bash experiments/results.sh sampling        after toy and laptop; an hour
#     bash experiments/results.sh few             after toy; ten hours, by as many calls at once as there are cores
#     bash experiments/results.sh real FOLDER     a day
#     bash experiments/results.sh speed FOLDER    with nothing else running; after toy
#
# Runs that have begun are resumed. Only a tree without uncommitted changes makes figures to be made again.
set -euo pipefail

train() {   # folder of the run, flags
  local resume=""
  [ ! -e "$1/ckpt.pt" ] || resume=--resume
  python train.py --out_dir="$1" "${@:2}" $resume
}

toy() {
  local mode seed runs=out/toy-ar,out/toy-mdlm,out/toy-aogpt
  for mode in ar mdlm aogpt; do
    train out/toy-$mode --mode=$mode --preset=toy
    for seed in 1 2; do train out/toy-$mode-$seed --mode=$mode --preset=toy --seed=$seed; done
  done
  python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt \
    --json=results/toy.json --plot=results/toy.png
  python compare.py ar-1=out/toy-ar-1 mdlm-1=out/toy-mdlm-1 aogpt-1=out/toy-aogpt-1 \
    ar-2=out/toy-ar-2 mdlm-2=out/toy-mdlm-2 aogpt-2=out/toy-aogpt-2 --json=results/toy-seeds.json
  local more=out/toy-ar-1,out/toy-mdlm-1,out/toy-aogpt-1,out/toy-ar-2,out/toy-mdlm-2,out/toy-aogpt-2
  python sample.py --out_dir=$runs,$more --sampler=first_hitting --num_samples=1000 \
    --json=results/toy-grammatical.json
  python diversity.py ar=out/toy-ar/samples.jsonl mdlm=out/toy-mdlm/samples.jsonl \
    aogpt=out/toy-aogpt/samples.jsonl --data=toy --judge=out/toy-ar \
    --json=results/toy-diversity.json --plot=results/toy-diversity.png
  python -m experiments.frontier --models=$runs --num_samples=300 --temperatures=0.4,0.6,0.8,1.0,1.2 --data=toy \
    --judge=out/toy-ar --json=results/toy-frontier.json --plot=results/toy-frontier.png
}

laptop() {
  local mode data=tinystories-excerpt
  local ar=out/$data-ar mdlm=out/$data-mdlm aogpt=out/$data-aogpt
  python prepare_data.py --text="$1/train.txt" --val="$1/valid.txt" --vocab_size=4096 --name=$data
  for mode in ar mdlm aogpt; do train out/$data-$mode --mode=$mode --preset=laptop --data=$data; done
  python compare.py ar=$ar mdlm=$mdlm aogpt=$aogpt --json=results/laptop.json --plot=results/laptop.png
  python sample.py --out_dir=$ar,$mdlm,$aogpt --sampler=first_hitting --temperature=0.7 --num_samples=2 \
    --json=results/laptop-samples.json --picture=results/modes.png
  python sample.py --out_dir=$mdlm --prompt="Once upon a time ___ lived happily." --temperature=0.7 \
    --num_samples=4 --json=results/blank.json

  # diversity from the start of a story, then as the paper samples
  python sample.py --out_dir=$ar,$mdlm,$aogpt --sampler=first_hitting --length=128 --num_samples=1000 \
    --dtype=bfloat16
  python diversity.py ar=$ar/samples.jsonl mdlm=$mdlm/samples.jsonl aogpt=$aogpt/samples.jsonl \
    --data=$data --judge=$ar --json=results/laptop-diversity.json --plot=results/laptop-diversity.png
  local paper=out/$data-mdlm-paper
  train $paper --mode=mdlm --preset=laptop --data=$data --windows=paper --max_steps=1500
  python sample.py --out_dir=$ar --protocol=paper --num_samples=1000 --dtype=bfloat16 --out=out/paper-ar.jsonl
  python sample.py --out_dir=$paper --protocol=paper --num_samples=1000 --dtype=bfloat16 \
    --out=out/paper-mdlm.jsonl
  python -m experiments.paper_diversity ar=out/paper-ar.jsonl --data=$data --judge=$ar \
    --json=results/laptop-paper-ar.json
  python -m experiments.paper_diversity mdlm=out/paper-mdlm.jsonl --data=$data --judge=$ar \
    --json=results/laptop-paper-mdlm.json
  python -m experiments.frontier --models=$ar,$mdlm,$aogpt --length=128 --dtype=bfloat16 --num_samples=100 \
    --temperatures=0.6,0.8,1.0,1.1 --data=$data --judge=$ar --json=results/laptop-frontier.json \
    --plot=results/laptop-frontier.png

  # without the common vector, and without the rotation by the target too
  for mode in ar mdlm aogpt; do
    train out/$data-$mode-plain --mode=$mode --preset=laptop --data=$data --shared_init=false --max_steps=2000
  done
  train out/$data-aogpt-usual --mode=aogpt --preset=laptop --data=$data --shared_init=false --max_steps=2000 \
    --target_rotation=false
  python compare.py ar=$ar-plain mdlm=$mdlm-plain aogpt=$aogpt-plain "aogpt, usual rotation=$aogpt-usual" \
    --json=results/laptop-ablation.json
}

own() {     # what is this code's own way, beside the paper's or an earlier one
  local mode init seed data=tinystories-excerpt before=out/before runs=""
  python prepare_data.py --text="$1/train.txt" --val="$1/valid.txt" --name=excerpt
  for mode in ar mdlm; do
    for init in paper scaled; do    # a step of next to no length: the loss at which each begins
      train out/first-$mode-$init --mode=$mode --preset=paper --init=$init --data=excerpt --batch_size=2 \
        --block_size=128 --max_steps=1 --eval_windows=64
      runs+=" $mode-$init=out/first-$mode-$init"
    done
  done
  python compare.py $runs --json=results/first-loss.json

  # mdlm without a time embedding, with it, and with it as it began in an earlier commit; after laptop
  [ -e $before ] || git worktree add $before 00c4c8f
  runs=""
  for seed in 1 2 3; do
    local flags="--mode=mdlm --preset=laptop --data=$data --max_steps=350 --eval_interval=175 --seed=$seed"
    train out/t-none-$seed $flags
    train out/t-after-$seed $flags --time_embedding=add
    [ -e out/t-before-$seed/loss.png ] || rm -rf out/t-before-$seed     # begun, but not at its end
    [ -e out/t-before-$seed ] ||
      python $before/train.py $flags --time_embedding=add --out_dir=out/t-before-$seed
    runs+=" none-$seed=out/t-none-$seed before-$seed=out/t-before-$seed after-$seed=out/t-after-$seed"
  done
  python compare.py $runs --json=results/time-embedding.json

  python -m experiments.estimator --models=out/toy-mdlm,out/$data-mdlm-paper --windows=8 \
    --json=results/estimator.json
}

sampling() {        # what samplers lose, with trained networks of three seeds and with a perfect one
  local ar=out/toy-ar,out/toy-ar-1,out/toy-ar-2 mdlm=out/toy-mdlm,out/toy-mdlm-1,out/toy-mdlm-2
  local aogpt=out/toy-aogpt,out/toy-aogpt-1,out/toy-aogpt-2 real=out/tinystories-excerpt
  python -m experiments.steps --models=$ar,$mdlm,$aogpt --json=results/toy-steps.json --plot=results/toy-steps.png
  python -m experiments.planners --mdlm=$mdlm --aogpt=$aogpt --num_samples=500 \
    --json=results/toy-planners.json
  python -m experiments.infill --models=$ar,$mdlm,$aogpt --json=results/toy-infill.json \
    --plot=results/toy-infill.png
  python -m experiments.infill --models=$real-ar,$real-mdlm,$real-aogpt --lengths=1,2,4,8,16,32 \
    --places=2 --draws=4 --json=results/laptop-infill.json --plot=results/laptop-infill.png
  python -m experiments.speculative --models=out/toy-aogpt,$real-aogpt --like=$real-aogpt \
    --json=results/speculative.json --plot=results/speculative.png
}

few() {     # distance from the toy's law, from few stories. Several calls share the work, one core each
  local part
  export OMP_NUM_THREADS=1
  for part in sweep sizes why rates widths; do python -m experiments.few_stories --part=$part; done
  python -m experiments.few_stories --json=results/few-stories.json --md=results/few-stories.md \
    --plot=results/few-stories.png
}

real() {    # an excerpt of TinyStories whole and its first 500 stories; half of the held-out ones choose
  local mode lr seed run="--preset=laptop --data=excerpt-choose --eval_windows=150 --eval_interval=50"
  python - "$1/valid.txt" <<'END'
import sys
from prepare_data import EOT, read_stories
stories = list(read_stories(sys.argv[1]))
for name, part in ("choose", stories[:150]), ("report", stories[150:]):
    open(f"data/{name}.txt", "w", encoding="utf-8").write(EOT.join(part))
END
  for half in choose report; do
    python prepare_data.py --text="$1/train.txt" --val=data/$half.txt --vocab_size=4096 --name=excerpt-$half
  done
  for mode in ar mdlm aogpt; do
    for lr in 1e-3 2e-3 4e-3; do
      train out/real/$mode-lr$lr --mode=$mode --lr=$lr --max_steps=1000 $run
    done
  done
}

speed() {
  python bench.py --json=results/speed.json
  python bench.py --preset=paper --batch_size=2 --repeats=3 --json=results/speed-paper.json
  python -m experiments.sampling_cost --lengths=64,128,256 --stories=1,16 --json=results/sampling-small.json
  python -m experiments.sampling_cost --preset=paper --json=results/sampling-cost.json
  python -m experiments.sampling_cost --preset=paper --stories=16 --lengths=256 \
    --json=results/sampling-cost-16.json
  python -m experiments.gpu_smoke --device=cpu --preset=small --what=cached --json=results/cached-step.json
  python -m experiments.scaling --modes=ar,mdlm --repeats=2 --json=results/scaling.json
  python -m experiments.time_self_bleu results/self-bleu-speed.json
  python -m experiments.try_load "$1/valid.txt" out/toy-ar results/load.json
}

[ $# -gt 0 ] || { sed -n 2,10p "$0"; exit 2; }
git diff --quiet HEAD -- . ":!results" || { echo "results.sh: commit your changes first" >&2; exit 2; }
"$@"
