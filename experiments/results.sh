#!/usr/bin/env bash
# The commands behind results/, in the order in which they must run, from the project's folder:
#
#     bash experiments/results.sh toy
#     bash experiments/results.sh laptop FOLDER   FOLDER holds real text, train.txt and valid.txt; hours
#     bash experiments/results.sh own FOLDER      after toy and laptop; an hour
#     bash experiments/results.sh sampling        after toy; an hour
#     bash experiments/results.sh few             after toy; hours; calls, one a core, share the work
#     bash experiments/results.sh minute          likewise
#     bash experiments/results.sh real FOLDER     hours, likewise
#     bash experiments/results.sh longer FOLDER   likewise: all stories ten times as long
#     bash experiments/results.sh written         right after real: what its models write
#     bash experiments/results.sh confounds MODE  mdlm or ar; after real; hours
#     bash experiments/results.sh gaps            right after both of confounds
#     bash experiments/results.sh orders          after real; likewise
#     bash experiments/results.sh plateau         after real; hours, likewise
#     bash experiments/results.sh adapt           after confounds, whose runs must be in out/; likewise
#     bash experiments/results.sh diversity FOLDER    after real; likewise, but for its last hour
#     bash experiments/results.sh denormals FOLDER    an hour
#     bash experiments/results.sh speed FOLDER    with nothing else running; after toy
#
# For each core: OMP_NUM_THREADS=1 taskset -c 0 bash experiments/results.sh real FOLDER
# Runs that have begun are resumed. Of real and confounds, those that results/ has the scores of are not made
# again (delete the file there to make them anew), and keep adds scores before all runs of a figure are done.
# Only a tree without uncommitted changes makes figures.
set -euo pipefail
shopt -s inherit_errexit

adamw="--optimizer=adamw --lr=2e-3"     # what the preset laptop had before Muon
narrow="--preset=laptop --n_embd=128 --n_hidden=352"    # 1.4M parameters of 4.3M, a third of the time
choosing="$narrow --data=excerpt-choose --eval_windows=150 --dtype=float32"

export KEPT=$(echo results/{real-{lr,tried,500,all,helped,longer},confounds-{rates,ar,mdlm}}.json)

known() {   # folder of a run whose scores held_out has put into results/
  grep -qs "^  \"$1\": {" $KEPT
}

train() {   # folder of the run, flags; a run that another call is at is left to it
  local resume=""
  mkdir -p "$(dirname "$1")"
  [ ! -e "$1.done" ] && ! known "$1" || return 0
  (
    flock --nonblock 9 || exit 0
    [ ! -e "$1/ckpt.pt" ] || resume=--resume
    python train.py --out_dir="$1" --quiet "${@:2}" $resume
    touch "$1.done"
  ) 9> "$1.lock"
}

finished() {        # folders: waits until other calls have done their runs
  local run
  for run; do
    ! known "$run" || continue
    flock "$run.lock" true
    [ -e "$run.done" ] || { echo "results.sh: $run is not done; call this again" >&2; exit 1; }
  done
}

toy() {
  local mode seed runs=out/toy-ar,out/toy-mdlm,out/toy-aogpt run="--preset=toy --eval_windows=4096"
  for mode in ar mdlm aogpt; do
    train out/toy-$mode --mode=$mode $run
    for seed in 1 2; do train out/toy-$mode-$seed --mode=$mode --seed=$seed $run; done
  done
  python compare.py ar=out/toy-ar mdlm=out/toy-mdlm aogpt=out/toy-aogpt \
    --json=results/toy.json --plot=results/toy.png
  python compare.py ar-1=out/toy-ar-1 mdlm-1=out/toy-mdlm-1 aogpt-1=out/toy-aogpt-1 \
    ar-2=out/toy-ar-2 mdlm-2=out/toy-mdlm-2 aogpt-2=out/toy-aogpt-2 --json=results/toy-seeds.json
  local more=out/toy-ar-1,out/toy-mdlm-1,out/toy-aogpt-1,out/toy-ar-2,out/toy-mdlm-2,out/toy-aogpt-2
  python sample.py --out_dir=$runs --draft=8 --num_samples=1 --seed=4 \
    --picture=results/modes.svg
  python sample.py --out_dir=$runs,$more --num_samples=1000 \
    --json=results/toy-grammatical.json
  python diversity.py ar=out/toy-ar/samples.jsonl mdlm=out/toy-mdlm/samples.jsonl \
    aogpt=out/toy-aogpt/samples.jsonl --data=toy --judge=out/toy-ar \
    --json=results/toy-diversity.json --plot=results/toy-diversity.png
  python -m experiments.frontier --models=$runs --num_samples=300 --temperatures=0.4,0.6,0.8,1.0,1.2 \
    --data=toy --judge=out/toy-ar --json=results/toy-frontier.json --plot=results/toy-frontier.png
}

laptop() {
  local mode data=tinystories-excerpt
  local ar=out/$data-ar mdlm=out/$data-mdlm aogpt=out/$data-aogpt
  python prepare_data.py --text="$1/train.txt" --val="$1/valid.txt" --vocab_size=4096 --name=$data
  # as it was when this was run; real is the fair comparison
  local untold="$adamw --target_embedding=false"
  local -A as_then=([ar]=$untold [mdlm]=$untold [aogpt]=$adamw)
  for mode in ar mdlm aogpt; do
    train out/$data-$mode --mode=$mode --preset=laptop --data=$data --max_steps=3000 ${as_then[$mode]}
  done

  # diversity from the start of a story, then as the paper samples
  python sample.py --out_dir=$ar,$mdlm,$aogpt --length=128 --num_samples=1000 \
    --dtype=bfloat16
  python diversity.py ar=$ar/samples.jsonl mdlm=$mdlm/samples.jsonl aogpt=$aogpt/samples.jsonl \
    --data=$data --judge=$ar --json=results/laptop-diversity.json --plot=results/laptop-diversity.png
  local paper=out/$data-mdlm-paper
  train $paper --mode=mdlm --preset=laptop --data=$data --windows=paper --max_steps=1500 ${as_then[mdlm]}
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
    local as_then="$adamw --target_embedding=false"
    train out/t-none-$seed $flags $as_then
    train out/t-after-$seed $flags $as_then --time_embedding=add
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
  local aogpt=out/toy-aogpt,out/toy-aogpt-1,out/toy-aogpt-2
  python -m experiments.steps --models=$ar,$mdlm,$aogpt --json=results/toy-steps.json \
    --plot=results/toy-steps.png
  python -m experiments.planners --mdlm=$mdlm --aogpt=$aogpt --num_samples=500 \
    --json=results/toy-planners.json
  python -m experiments.infill --models=$ar,$mdlm,$aogpt --json=results/toy-infill.json \
    --plot=results/toy-infill.png
  python -m experiments.speculative --models=out/toy-aogpt --json=results/speculative.json
  python -m experiments.orders aogpt=$aogpt --data=toy --blocks=4,16 --windows=500 --orders=16 \
    --json=results/toy-orders.json --md=results/toy-orders.md --plot=results/toy-orders.png
}

minute() {  # what the preset toy learns so soon, and what was tried in its place
  local mode
  export OMP_NUM_THREADS=1
  for mode in mdlm aogpt ar; do
    python -m experiments.first_minute --mode=$mode --json=results/first-minute.json
  done
  python -m experiments.first_minute --json=results/first-minute.json --md=results/first-minute.md
}

few() {     # distance from the toy's law, from few stories. Several calls share the work, one core each
  local part
  export OMP_NUM_THREADS=1
  for part in sizes not_told why widths; do
    python -m experiments.few_stories --part=$part --json=results/few-stories.json \
      --md=results/few-stories-tables.md --plot=results/few-stories.png
  done
}

halves() {  # data/excerpt-choose and -report: the same training text, half of the held-out stories each
  mkdir -p data
  (
    flock 9
    [ ! -e data/excerpt-report/meta.json ] || exit 0
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
  ) 9> data/excerpt.lock
}

best_of() {  # folders of runs: the one that the stories which choose like best
  python - "$@" <<'END'
import os
import sys
from experiments.trials import stored
from runs import read_run
known = {folder: run for path in os.environ["KEPT"].split()
         for folder, run in stored(path, "runs", "compared").items()}
print(min(sys.argv[1:], key=lambda folder: min(
    entry["val_nll"] for entry in (known.get(folder) or read_run(folder))["curve"])))
END
}

once() {    # name, command: by one call at a time; others go on without it
  (
    flock --nonblock 9 || { echo "another call is at $1"; exit 0; }
    "${@:2}"
  ) 9> "out/$1.lock"
}

keep() {    # file of results, its runs' folders as a pattern, flags of held_out: adds those that are done
  local done runs=()
  for done in $2.done; do
    [ ! -e $done ] || known ${done%.done} || runs+=(${done%.done})
  done
  [ ${#runs[@]} = 0 ] || once $(basename $1 .json) python -m experiments.held_out --report=excerpt-report \
    --json=$1 "${@:3}" --only_score "these=$(echo ${runs[@]} | tr ' ' ,)"
}

rated() {   # modes: folders of the runs that try learning rates, for 500 steps
  local mode
  for mode; do
    echo out/real/$mode-lr-{2e-3,4e-3,8e-3,1.6e-2}
    [ $mode != aogpt ] || echo out/real/aogpt-lr-{3.2e-2,6.4e-2}       # its best was at the edge
  done
}

on_text() { # name, mode, stories (all or 500), lr, seed, flags: a run as long as real's are
  local -A steps=([all]=1500 [500]=1000) few=([all]= [500]=--train_stories=500)
  local interval=125
  [ $2 != ar ] || interval=50       # it may turn soon
  train out/real/$1-$5 --mode=$2 --lr=$4 --seed=$5 $choosing --eval_interval=$interval ${few[$3]} \
    --max_steps=${steps[$3]} "${@:6}"
}

climb() {   # a learning rate, the folder of its run, the command that makes it, each with @ for the rate
  local rate=$1 make=("${@:3}") next factor tried     # the best one: halved or doubled while that is better
  for factor in 0.5 2; do
    while next=$(awk "BEGIN { print $rate * $factor }"); do
      for tried in $rate $next; do "${make[@]//@/$tried}" >&2; done
      finished ${2//@/$rate} ${2//@/$next}
      [ $(best_of ${2//@/$rate} ${2//@/$next}) != ${2//@/$rate} ] || break
      rate=$next
    done
  done
  echo $rate
}

lr_of() {   # mode, stories: what climbs from the best learning rate of 500 steps (for 500 stories: of all)
  local rate tried=$(rated $1)
  if [ $2 = all ]; then
    finished $tried
    rate=$(best_of $tried)
    rate=$(awk "BEGIN { print ${rate##*-lr-} }")
  else
    rate=$(lr_of $1 all)
  fi
  climb $rate out/real/$1-$2-@-1 on_text $1-$2-@ $1 $2 @ 1
}

seeds() { echo "$1"-{1,2,3} | tr ' ' ,; }

report() {  # name of real-…, title, runs as NAME=FOLDER,…
  finished $(printf '%s\n' "${@:3}" | sed 's/.*=//' | tr , ' ')
  once real-$1 python -m experiments.held_out --report=excerpt-report --title="$2" "${@:3}" \
    --json=results/real-$1.json --md=results/real-$1.md --plot=results/real-$1.png
}

real() {    # an excerpt of TinyStories, whole and 500 of its stories; half of the held-out ones choose
  local mode lr best seed stories remedy dropout noise steps tried runs to=out/real
  # what is tried on 500, with a seed of its own: dropout, token noise, steps, and another learning rate
  local -A remedies=([ar]="0-0-200 0-0-400 0.1-0.1-400 0.3-0.3-400 0.3-0.3-1000 0.5-0.3-1000 \
0.3-0.3-1000-0.016" [mdlm]="0-0-4000 0.1-0-2000 0.3-0-2000" [aogpt]="0.1-0-2000 0.3-0-2000 0.3-0-4000")
  local -A remedy_lr=([ar]=0.008 [mdlm]=0.008 [aogpt]=0.004)
  remedied() {    # mode, remedy, seed
    local rate
    IFS=- read -r dropout noise steps rate <<< "$2"
    on_text $1-500-$2 $1 500 ${rate:-${remedy_lr[$1]}} $3 --dropout=$dropout --token_noise=$noise \
      --max_steps=$steps
  }
  halves "$1"
  for mode in ar mdlm aogpt; do
    for tried in $(rated $mode); do
      train $tried --mode=$mode --lr=${tried##*-lr-} --max_steps=500 $choosing \
        --eval_interval=$([ $mode = ar ] && echo 50 || echo 125)
    done
  done
  keep results/real-lr.json "$to/*-lr-*"
  for stories in all 500; do
    runs=()
    for mode in ar mdlm aogpt; do
      lr=$(lr_of $mode $stories)
      for seed in 1 2 3; do on_text $mode-$stories-$lr $mode $stories $lr $seed; done
      runs+=($mode=$(seeds $to/$mode-$stories-$lr))
    done
    keep results/real-$stories.json "$to/*-$stories-0.0*-1"     # also those that chose the learning rate
    report $stories "Real text, $stories stories" "${runs[@]}"
  done
  runs=()
  for mode in ar mdlm aogpt; do
    for remedy in ${remedies[$mode]}; do remedied $mode $remedy 4; done
  done
  for mode in ar mdlm aogpt; do
    tried=$(printf "$to/$mode-500-%s-4 " ${remedies[$mode]})
    finished $tried
    best=$(best_of $tried)
    remedy=${best#*-500-}
    remedy=${remedy%-4}
    for seed in 1 2 3; do remedied $mode $remedy $seed; done
    runs+=("$mode=$(seeds $to/$mode-500-$remedy)")
  done
  keep results/real-tried.json "$to/*-500-*-4"
  report helped "Real text, 500 stories, each mode at the best of what was tried" "${runs[@]}"
}

longer() {  # all stories for ten times as many steps, half the learning rate; ar with what helped it on 500
  local mode rate flags="--dtype=bfloat16 --max_steps=15000 --eval_interval=500"
  halves "$1"
  for mode in mdlm aogpt; do on_text $mode-longer $mode all 0.004 1 $flags; done
  for rate in 0.004 0.008; do
    on_text ar-longer-$rate ar all $rate 1 $flags --dropout=0.1 --token_noise=0.1 --max_steps=3000 \
      --eval_interval=100
  done
  finished out/real/ar-longer-{0.004,0.008}-1
  keep results/real-longer.json "out/real/ar-longer-*-1"
  report longer "Real text, all stories: 15,000 steps; ar 3,000, with dropout and token noise of 0.1" \
    ar=$(best_of out/real/ar-longer-{0.004,0.008}-1) mdlm=out/real/mdlm-longer-1 aogpt=out/real/aogpt-longer-1
}

written() {         # what the models of real write and fill in; its runs must be in out/
  local mode lr first=() runs=()
  for mode in ar mdlm aogpt; do
    lr=$(lr_of $mode all)
    first+=(out/real/$mode-all-$lr-1)
    runs+=(out/real/$mode-all-$lr-{1,2,3})
  done
  finished ${runs[@]}
  python sample.py --out_dir=$(echo ${first[@]} | tr ' ' ,) --temperature=0.7 --num_samples=2 \
    --json=results/real-samples.json --picture=results/modes.png
  python sample.py --out_dir=${first[2]} --order=left_to_right --temperature=0.7 --num_samples=2 \
    --json=results/real-samples-l2r.json
  python sample.py --out_dir=${first[1]} --prompt="Once upon a time ___ lived happily." --temperature=0.7 \
    --num_samples=4 --json=results/real-blank.json
  python -m experiments.orders mdlm=$(echo ${runs[@]:3:3} | tr ' ' ,) aogpt=$(echo ${runs[@]:6} | tr ' ' ,) \
    --data=excerpt-report --windows=48 --blocks=16 --orders=1 --json=results/real-orders.json \
    --md=results/real-orders.md
  python -m experiments.infill --models=$(echo ${runs[@]} | tr ' ' ,) --lengths=1,2,4,8,16,32 --places=2 \
    --draws=4 --data=excerpt-report --json=results/real-infill.json --plot=results/real-infill.png
  python -m experiments.speculative --models=${first[2]} --like=${first[2]} \
    --json=results/real-speculative.json --plot=results/real-speculative.png
}

# in bfloat16, unlike real: much faster on processors that have it
thousand="$choosing --dtype=bfloat16 --max_steps=1000 --eval_interval=100"

base() {    # mode, seed: what others of a thousand steps are compared with; it is in confounds' folder
  local lr
  lr=$(lr_of $1 all)
  train out/confounds/$1-as-it-is-$2 --mode=$1 --lr=$lr --seed=$2 $thousand
}

confounds() {       # mode: what each thing does that the paper has otherwise, one at a time; after real
  local mode=$1 lr=$(lr_of $1 all) seed name begin rate flags dir args=()
  local init="--init=paper --shared_init=false" not_told=--target_embedding=false
  local schedule="--warmup=25 --final_lr=0.05"   # in as many steps
  local all="--optimizer=adamw --beta2=0.999 $init $schedule $not_told --windows=paper"
  local diffusion="--tie_head=false --time_embedding=add --objective=masked_ce --schedule=cosine"
  # name, modes, learning rate to climb from in 500 steps with a seed of its own (else the mode's), flags
  local variants="as it is        | mdlm ar |       |
    AdamW                         | mdlm ar | 0.004 | --optimizer=adamw
    untied head                   | mdlm ar | 0.008 | --tie_head=false
    no common vector              | mdlm ar |       | --shared_init=false
    no target embedding           | mdlm ar |       | $not_told
    init of the paper             |      ar | 0.004 | $init
    its init, untied head         | mdlm    | 0.004 | $init --tie_head=false
    its init, head, time          | mdlm    | 0.004 | $init --tie_head=false --time_embedding=add
    its schedule                  | mdlm ar |       | $schedule
    its windows                   | mdlm ar |       | --windows=paper
    float32                       | mdlm ar |       | --dtype=float32
    time embedding                | mdlm    |       | --time_embedding=add
    masked_ce, uniform schedule   | mdlm    |       | --objective=masked_ce
    masked_ce, cosine schedule    | mdlm    |       | --objective=masked_ce --schedule=cosine
    all of it                     |      ar | 0.002 | $all
    all of it                     | mdlm    | 0.002 | $all $diffusion"
  for seed in 1 2 3; do
    while IFS='|' read -r name _ begin flags; do
      name=$(echo $name) dir=out/confounds/$mode-$(echo $name | tr -d , | tr ' ' -) rate=$lr
      [ -z "${begin// }" ] || rate=$(climb $begin $dir-rate-@ train $dir-rate-@ --mode=$mode --lr=@ --seed=4 \
        $thousand --max_steps=500 $flags < /dev/null)
      train $dir-$seed --mode=$mode --lr=$rate --seed=$seed $thousand $flags < /dev/null
      [ $seed != 3 ] || args+=("$name=$(seeds $dir)")
    done < <(grep "^[^|]*|[^|]*$mode" <<< "$variants")
    keep results/confounds-rates.json "out/confounds/*-rate-*" --draws=1
    keep results/confounds-$mode.json "out/confounds/$mode-*-$seed" --without_end --draws=8
  done
  finished $(printf '%s\n' "${args[@]}" | sed 's/.*=//' | tr , ' ')
  once confounds-$mode python -m experiments.held_out --report=excerpt-report --without_end --draws=8 \
    "${args[@]}" --json=results/confounds-$mode.json
}

gaps() {    # both modes' variants in one table and figure
  python -m experiments.confounds --mdlm=results/confounds-mdlm.json --ar=results/confounds-ar.json \
    --json=results/confounds.json --md=results/confounds-table.md --plot=results/confounds.png
}

orders() {  # aogpt: left to right how often; rotation and common vector; its runs must stay in out/
  local lr seed fraction rotation common name args=()
  lr=$(lr_of aogpt all)
  for seed in 1 2 3; do
    base aogpt $seed
    for fraction in 0 0.25 0.5 1; do
      # best.pt by the bound is no good where only left to right is trained: the last step counts
      train out/orders/fraction-$fraction-$seed --mode=aogpt --lr=$lr --seed=$seed $thousand \
        --eval_interval=1000 --l2r_fraction=$fraction
    done
    for name in "false true" "true false" "false false"; do
      read -r rotation common <<< "$name"
      train out/orders/rotation-$rotation-common-$common-$seed --mode=aogpt --lr=$lr --seed=$seed $thousand \
        --target_rotation=$rotation --shared_init=$common
    done
  done
  finished out/confounds/aogpt-as-it-is-{1,2,3}
  args=("fraction-0.1=$(seeds out/confounds/aogpt-as-it-is)")
  for name in fraction-{0,0.25,0.5,1} \
              rotation-{false-common-true,true-common-false,false-common-false}; do
    finished out/orders/$name-{1,2,3}
    args+=("$name=$(seeds out/orders/$name)")
  done
  # without fraction-1, whose bound nothing trains
  once orders-held-out python -m experiments.held_out --report=excerpt-report \
    --title="aogpt, in other ways" "${args[@]:0:4}" "${args[@]:5}" \
    --json=results/orders-held-out.json --md=results/orders-held-out.md --forest=results/orders-held-out.png
  once orders python -m experiments.orders "${args[@]:0:5}" --data=excerpt-report --json=results/orders.json \
    --md=results/orders.md --plot=results/orders.png
}

plateau() { # what ends mdlm's first hundreds of steps on real text; needs what real prepares
  local part
  export OMP_NUM_THREADS=1
  for part in where longer how_much lengths settings; do
    python -m experiments.plateau --part=$part --json=results/plateau.json
  done
  python -m experiments.plateau --json=results/plateau.json --md=results/plateau-tables.md \
    --plot=results/plateau.png
}

adapt() {   # from one mode to another, beside from scratch in as many steps; its runs must stay in out/
  local lr seed name to from args
  for seed in 1 2 3; do
    for from in ar aogpt; do
      lr=$(lr_of $from all)
      train out/adapt/$from-$seed --mode=$from --lr=$lr --seed=$seed $thousand --max_steps=500
    done
    # is there a plateau for an mdlm that begins as an ar, where there would be one?
    train out/adapt/ar-plain-$seed --mode=ar --lr=$(lr_of ar all) --seed=$seed $thousand --max_steps=500 \
      --shared_init=false
    for name in ar-from-aogpt aogpt-from-ar mdlm-from-ar mdlm-from-ar-plain; do
      to=${name%%-from-*} from=${name#*-from-}
      base $to $seed
      finished out/adapt/$from-$seed
      lr=$(lr_of $to all)
      # a seed of its own: it would read the same windows a second time, in the same order
      train out/adapt/$name-$seed --mode=$to --lr=$lr --seed=$((seed + 10)) $thousand --max_steps=500 \
        --eval_interval=50 --init_from=out/adapt/$from-$seed
    done
  done
  for to in ar aogpt mdlm; do
    args=("$to=$(seeds out/confounds/$to-as-it-is)")
    for name in $(ls -d out/adapt/$to-from-*-1); do
      name=$(basename ${name%-1})
      finished out/{confounds/$to-as-it-is,adapt/$name}-{1,2,3}
      args+=("$(echo $name | tr - ' ')=$(seeds out/adapt/$name)")
    done
    once adapt-$to python -m experiments.held_out --report=excerpt-report \
      --title="$to from scratch, 1,000 steps, or 500 after 500 of another" "${args[@]}" \
      --json=results/adapt-$to.json --md=results/adapt-$to.md --plot=results/adapt-$to.png
  done
}

diversity() {   # stories of three seeds a mode, beside real ones, judged by others' models; runs must stay
  local mode seed lr part steps val to=out/diversity
  mkdir -p data
  (
    flock 9
    [ ! -e data/excerpt-cut/meta.json ] || exit 0
    python - "$1/train.txt" <<'END'
import sys
from prepare_data import EOT, read_stories
stories = list(read_stories(sys.argv[1]))
for name, part in ("models", stories[:2700]), ("judges", stories[2700:4300]), ("real", stories[4300:]):
    open(f"data/{name}.txt", "w", encoding="utf-8").write(EOT.join(part))
open("data/cut.txt", "w", encoding="utf-8").write("".join(part))      # as --windows=paper reads stories
END
    for part in models judges; do
      python prepare_data.py --text=data/$part.txt --val="$1/valid.txt" --vocab_size=4096 --name=excerpt-$part
    done
    for val in real cut; do
      python prepare_data.py --text=data/models.txt --val=data/$val.txt --vocab_size=4096 --name=excerpt-$val
    done
  ) 9> data/excerpt.lock
  for seed in 1 2 3; do
    for mode in ar mdlm aogpt; do
      lr=$(lr_of $mode all)
      steps=1500        # windows of 128 tokens, as long as what is sampled
      [ $mode != ar ] || steps=750      # it would overfit
      train $to/$mode-$seed --mode=$mode $narrow --data=excerpt-models --seed=$seed --lr=$lr \
        --dtype=bfloat16 --block_size=128 --max_steps=$steps --eval_interval=50
    done
    lr=$(lr_of mdlm all)
    train $to/mdlm-paper-$seed --mode=mdlm $narrow --data=excerpt-models --windows=paper --seed=$seed \
      --lr=$lr --dtype=bfloat16 --block_size=128 --max_steps=1500
  done
  for seed in 1 2; do
    lr=$(lr_of ar all)
    train $to/judge-$seed --mode=ar $narrow --data=excerpt-judges --lr=$lr --seed=$seed \
      --dropout=0.1 --token_noise=0.1 --dtype=bfloat16
  done
  finished $to/{ar,mdlm,aogpt,mdlm-paper}-{1,2,3} $to/judge-{1,2}
  once diversity stories_of_three
}

stories_of() {      # lines of a name, its runs, flags of sample.py: NAME=FILE,FILE,FILE each, made if need be
  local name run flags seed file files
  while IFS='|' read -r name run flags; do
    files=()
    for seed in 1 2 3; do
      file=out/diversity/$(echo $name | tr -d , | tr ' ' -)-$seed.jsonl
      [ -e $file ] || python sample.py --out_dir=out/diversity/$run-$seed --num_samples=1000 --length=128 \
        --dtype=bfloat16 --seed=$seed --out=$file $flags < /dev/null >&2
      files+=($file)
    done
    echo "$name=$(echo ${files[@]} | tr ' ' ,)"
  done
}

stories_of_three() {
  local files mode data to=out/diversity ar="ar by the paper|ar|--protocol=paper"
  local mdlm="mdlm by the paper|mdlm-paper|--protocol=paper
mdlm by the paper, no penalty|mdlm-paper|--protocol=paper --repetition_penalty=1"
  files=$(stories_of <<< "ar|ar|
mdlm|mdlm|
mdlm, confidence|mdlm|--sampler=confidence
aogpt|aogpt|
aogpt, left to right|aogpt|--order=left_to_right")
  mapfile -t files <<< "$files"
  python diversity.py "${files[@]}" --data=excerpt-real --judge=$to/judge-1,$to/judge-2 \
    --json=results/diversity.json --plot=results/diversity.png
  for mode in ar mdlm; do       # apart: the paper's ar goes on from a word, beside real text that does
    files=$(stories_of <<< "${!mode}")
    mapfile -t files <<< "$files"
    data=excerpt-real
    [ $mode = ar ] || data=excerpt-cut
    python -m experiments.paper_diversity "${files[@]}" --data=$data --judge=$to/judge-1,$to/judge-2 \
      --json=results/diversity-paper-$mode.json
  done
  python -m experiments.frontier --models=$to/ar-1,$to/mdlm-1,$to/aogpt-1,$to/aogpt-1:left_to_right \
    --length=128 --dtype=bfloat16 --num_samples=300 --data=excerpt-real --judge=$to/judge-1 \
    --json=results/diversity-frontier.json --plot=results/diversity-frontier.png
}

denormals() {       # of some runs, whether or not real still needs them; FOLDER as real's
  local rate KEPT=/dev/null
  local runs=$(echo out/real/{mdlm-500-{0.016-1,0.008-1,0-0-4000-4},ar-500-0.064-1,aogpt-500-0.032-1})
  halves "$1"
  for rate in 0.016 0.008; do on_text mdlm-500-$rate mdlm 500 $rate 1; done
  on_text mdlm-500-0-0-4000 mdlm 500 0.008 4 --max_steps=4000
  on_text ar-500-0.064 ar 500 0.064 1
  on_text aogpt-500-0.032 aogpt 500 0.032 1
  python -m experiments.denormals --runs=${runs// /,} --json=results/denormals.json
}

speed() {
  python bench.py --json=results/speed.json
  python bench.py --preset=paper --batch_size=2 --repeats=3 --json=results/speed-paper.json
  python -m experiments.sampling_cost --lengths=64,128,256 --stories=1,16 --json=results/sampling-small.json
  python -m experiments.sampling_cost --preset=paper --json=results/sampling-cost.json
  python -m experiments.sampling_cost --preset=paper --stories=16 --lengths=256 \
    --json=results/sampling-cost-16.json
  python -m experiments.scaling --modes=ar,mdlm --repeats=2 --json=results/scaling.json
  python -m experiments.contention --json=results/contention.json
  python -m experiments.time_self_bleu results/self-bleu-speed.json
  python -m experiments.try_load "$1/valid.txt" out/toy-ar results/load.json
}

[ $# -gt 0 ] || { sed -n 2,25p "$0"; exit 2; }
git diff --quiet HEAD -- . ":!results" || { echo "results.sh: commit your changes first" >&2; exit 2; }
"$@"; exit     # whatever follows here by now
