"""No table below drifts: each of its cells in README and the pages of results/ is computed again from the
JSON files that the page names, and rounded as shown."""
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from conftest import ROOT
from experiments import by_ratio, few_stories, first_minute, held_out, orders, plateau
from experiments.results import REMEDIES
from model import Config, flops_per_token, group_losses

def results(name):
    return json.loads(Path(ROOT, "results", name).read_text("utf-8"))

def prose(page):
    """The page's text in one line."""
    return re.sub(r"\s+", " ", Path(ROOT, page).read_text("utf-8"))

def cells_of(rows):
    """Of a Markdown table's lines, below its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]

def table(page, head):
    """The rows below the line that begins so, of the page's only table that has one: lists of cells."""
    text = Path(ROOT, page).read_text("utf-8")
    [found] = re.findall(rf"^\| *{re.escape(head)}.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return cells_of(found)

def percent(values):
    """Mean, and over several seeds their standard deviation."""
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}%{spread}"

def of_steps(mode, sampler, perfect=False, **which):
    """Rows of toy-steps.json: of all seeds, or of the perfect network. Only mdlm has a choice of samplers."""
    which |= {"mode": mode} | ({"sampler": sampler} if mode == "mdlm" else {})
    return [row for row in results("toy-steps.json")["rows"] if (row["network"] == "exact") == perfect
            and all(row[name] == value for name, value in which.items())]

def by(of):
    """How far two are apart, with its 95% interval, of what held_out.compare says."""
    return f"{abs(of['above']):.2f} ± {of['half']:.2f}"

def spread(seeds):
    return f"{np.mean(seeds):.2f} ± {np.std(seeds, ddof=1):.2f}"

def test_fewer_steps():
    names = {"`ar`": ("ar", "ancestral"), "`mdlm`, `first_hitting`": ("mdlm", "first_hitting"),
             "`aogpt`": ("aogpt", "ancestral"), "`mdlm`, `ancestral`": ("mdlm", "ancestral"),
             "`mdlm`, `confidence`": ("mdlm", "confidence"),
             **{f"perfect, `{sampler}`": ("mdlm", sampler, True)
                for sampler in ("first_hitting", "ancestral", "confidence")}}
    rows = table("results/sampling.md", "grammatical stories at")
    assert {row[0] for row in rows} == set(names)
    for name, *cells in rows:
        for per_step, cell in zip((1, 2, 4, 8, 16), cells):
            found = of_steps(*names[name], steps=48 // per_step, draft=None)
            assert cell == (percent([row["grammatical"] for row in found]) if found else "")

def test_drafts():
    for name, *cells in table("results/sampling.md", "tokens drafted at once, M | 1 "):
        perfect = "perfect" in name
        for M, cell in zip((1, 2, 4, 8, 16, 48), cells):
            found = of_steps("aogpt", "ancestral", perfect, steps=48, draft=M)
            assert len(found) == (1 if perfect else 3)
            passes = f"{np.mean([row['tokens_per_pass'] for row in found]):.2f}"
            good = percent([row["grammatical"] for row in found])
            assert cell == (good if name.endswith("grammatical") else passes)

REAL = "out/real/aogpt-all-0.008-1"

def test_drafts_in_seconds():
    names = {"toy": "out/toy-aogpt", "real text": REAL, "124M": "124M", "real text, 1.4M": REAL}
    found = results("speculative.json")["results"] | results("real-speculative.json")["results"]
    for name, *cells in table("results/sampling.md", "tokens drafted at once, M | none"):
        if name == "drafts kept, real text":
            law = found[REAL]["law"]
            assert cells == ["", *(f"{row['drafts_kept']:.0%}" for row in law)]
        elif name.endswith("tokens a pass"):
            law = found[names[name.split(", ")[0]]]["law"]
            assert cells == ["1", *(f"{row['tokens_per_pass']:.2f}" for row in law)]
        else:
            of, stories = re.match(r"(.+), (\d+) stor", name).groups()
            speed = [row for row in found[names[of]]["speed"] if row["stories"] == int(stories)]
            plain = f"{np.median(speed[0]['seconds']):.3g} s"
            assert cells == [plain, *(f"{row['times_faster']:.2f}" for row in speed[1:])]

def test_rules():
    names = {"random": "random", "left to right": "left_to_right", "smallest entropy": "entropy",
             "`confidence`: the likeliest of the tokens drawn": "confidence",
             "largest margin between the two likeliest": "margin",
             "all that is certain, and one more": "bounded"}
    rules = {row["rule"]: row for row in results("toy-planners.json")["rules"][::-1]
             if row["network"] == "exact" and row["per_step"] in (0, 1)}
    for name, *cells in table("results/sampling.md", "what to reveal next"):
        row = rules[names[name]]
        found = f"{row['passes']:.3g} {row['grammatical']:.1%} {row['kl']:.3f} {row['surprise']:+.2f}"
        assert cells == found.replace("-", "−").split()

def test_where_the_networks_err():
    rows = results("toy-planners.json")["conditionals"]
    for mode, *cells in table("results/sampling.md", "masked | 1 | 2"):
        for masked, cell in zip((1, 2, 4, 8, 16, 24, 32, 40, 47), cells):
            kl = [row["kl"] for row in rows if mode.strip("`") in row["network"] and row["masked"] == masked]
            assert len(kl) == 3 and cell == f"{np.mean(kl):.4f}"

def test_cost_of_sampling():
    found = [*results("sampling-cost.json")["sample"], *results("sampling-cost-16.json")["sample"]]
    for row, cells in zip(found, table("results/sampling.md", "stories at once | tokens each"), strict=True):
        s, ratios = row["seconds"], row["ratios"]
        assert cells == [
            str(row["stories"]), f"{row['length']:,}", f"{s['ar']:.1f}", f"{s['ar, no cache']:,.0f}",
            f"{ratios['÷ cache']:.1f}", f"{s['ar, bf16']:.1f}", f"{s['aogpt']:.1f}", f"{s['mdlm']:,.0f}",
            f"{ratios['mdlm ÷ aogpt']:.1f}", f"{s['ancestral, few']:.0f}",
            f"{ratios['all logits ÷ ours']:.2f}"]

def gaps_of_conditionals(mode):
    """Of each seed: KL of the exact conditionals, averaged over the number of masked tokens."""
    rows = [row for row in results("toy-planners.json")["conditionals"] if mode in row["network"]]
    seeds = [[(row["masked"], row["kl"]) for row in rows if row["network"] == name]
             for name in dict.fromkeys(row["network"] for row in rows)]
    return [np.interp(range(1, 49), *zip(*points)).mean() for points in seeds]

@pytest.mark.parametrize("page", ["README.md", "results/toy.md"])
def test_the_toy(page):
    runs = results("toy.json")["runs"]
    seeds = results("toy-seeds.json")["runs"]
    shares = results("toy-grammatical.json")
    *rows, [name, _, *nats, above, good] = table(page, "| loss is")
    assert "left to right" in name
    of_aogpt = [of["curve"][-1] for of in (runs["aogpt"], seeds["aogpt-1"], seeds["aogpt-2"])]
    assert nats in ([], [f"{of_aogpt[0]['val_nll_l2r']:.4f}"])
    assert above == ", ".join(f"{of['val_nll_l2r'] - of['val_floor']:.4f}" for of in of_aogpt)
    assert good == ", ".join(f"{row['grammatical']:.1%}" for row in results("toy-grammatical-l2r.json"))
    for mode, _, *nats, above, good in rows:
        mode = mode.strip("`")
        last = runs[mode]["curve"][-1]
        assert nats in ([], [f"{last['val_nll']:.4f} ± {last['val_nll_se']:.4f}"])
        assert nats or f"above the law's {last['val_floor']:.4f}, each seed" in prose(page)
        direct = [run["curve"][-1]["val_nll"] - run["curve"][-1]["val_floor"]
                  for run in (runs[mode], seeds[f"{mode}-1"], seeds[f"{mode}-2"])]
        gaps = {"mdlm": gaps_of_conditionals("mdlm")}.get(mode, direct)
        assert above.partition(" (")[0] == ", ".join(f"{gap:.4f}" for gap in gaps)
        if (page, mode) == ("results/toy.md", "mdlm"):
            text = prose(page)
            assert "it is {:.4f}, {:.4f} and {:.4f}, all".format(*direct).replace("-", "−") in text
            of_aogpt = gaps_of_conditionals("aogpt")
            assert "`aogpt`'s gaps are {:.4f}, {:.4f} and {:.4f}".format(*of_aogpt) in text
        found = [row["grammatical"] for row in shares if row["mode"] == mode]
        assert good == ", ".join(f"{share:.1%}" for share in found)

def test_speed():
    small, large, gpu = (results(f"{name}.json")["train"] for name in ("speed", "speed-paper", "speed-gpu"))
    for line in table("results/speed.md", "sizes | mode"):
        sizes, mode, speed, plain, ratio, to_ar, flops, mfu, peak, logits = line
        row = (small if sizes.startswith("small") else large)[mode.strip("`")]
        assert speed.startswith(f"{row['tok_per_s']:,.0f} (") and plain == f"{row['baseline_tok_per_s']:,.0f}"
        assert ratio == f"{row['tok_per_s'] / row['baseline_tok_per_s']:.2f}"
        assert to_ar == f"{row['ratio_to_ar']:.2f}" and flops == f"{row['flops_per_token'] / 1e6:.1f}"
        assert mfu == f"{row['mfu']:.0%}" and logits == f"{row['logits_mb']:.0f}"
        assert peak == f"{row['peak_mem_mb']:,.0f} ({row['baseline_peak_mem_mb']:,.0f})"
    rows = table("README.md", "layers, width, batch | `ar`")
    for found, (_, *cells, times) in zip((small, large, gpu), rows, strict=True):
        rows = [found[mode] for mode in ("ar", "mdlm", "aogpt")]
        assert cells == [f"{row['tok_per_s']:,.0f}" for row in rows]
        ratios = [row["tok_per_s"] / row["baseline_tok_per_s"] for row in rows]
        assert times == ", ".join(f"{ratio:.2f}" for ratio in ratios)

def test_speed_on_a_gpu():
    text, found = prose("results/speed.md"), results("speed-gpu.json")
    published = {"ar": (50620, 107.9), "mdlm": (48343, 113.0)}          # the paper's Table 2
    minutes, tokens = [], found["batch_size"] * 512

    def cells(row):
        low, high = (tokens / seconds for seconds in (max(row["seconds"]), min(row["seconds"])))
        return [f"{row['tok_per_s']:,.0f} ({low:,.0f}–{high:,.0f})", f"{row['baseline_tok_per_s']:,.0f}",
                f"{row['tok_per_s'] / row['baseline_tok_per_s']:.2f}", f"{row['ratio_to_ar']:.2f}",
                f"{row['mfu']:.0%}"]

    rows, newer = [], results("speed-h200.json")["train"]
    for mode, row in found["train"].items():
        minutes.append(20000 * tokens / row["tok_per_s"] / 60)
        speed, plain, *ratios = cells(row)
        rows.append([f"`{mode}`", speed, plain, f"{published[mode][0]:,}" if mode in published else "",
                     *ratios, f"{row['peak_mem_mb']:,.0f} ({row['baseline_peak_mem_mb']:,.0f})",
                     f"{minutes[-1]:.1f}"])
    assert table("results/speed.md", "H100 |") == rows
    assert table("results/speed.md", "H200 |") == [[f"`{mode}`", *cells(row)] for mode, row in newer.items()]
    faster = [newer[mode]["tok_per_s"] / row["tok_per_s"] - 1 for mode, row in found["train"].items()]
    assert f"**An H200 is {min(faster) * 100:.0f} to {max(faster):.0%} faster**" in text
    minutes = *minutes[:2], *(took for _, took in published.values())
    assert ("steps of as many tokens as the paper's take {:.0f} and {:.0f} minutes, evaluation not counted, "
            "instead of {:.0f} and {:.0f}").format(*minutes) in text
    ratios = [row["tok_per_s"] / row["baseline_tok_per_s"] for row in found["train"].values()]
    assert 8.5 < min(ratios) < max(ratios) < 10.5 and "and train.py is nine to ten times as fast**" in text
    assert all(abs(found["train"][mode]["baseline_tok_per_s"] / speed - 1) < 0.025
               for mode, (speed, _) in published.items())       # "as fast as the paper says its code was"
    ar, mdlm = found["train"]["ar"], found["train"]["mdlm"]
    assert "is at {:.2f} (by FLOPs {:.2f}): attention".format(
        mdlm["ratio_to_ar"], ar["flops_per_token"] / mdlm["flops_per_token"]) in text
    peaks = [max(row[key] for row in found["train"].values()) for key in (
        "peak_mem_mb", "baseline_peak_mem_mb")]
    assert "on the H100: `controlled` {:.1f} GB, the plain way {:.0f} GB.".format(
        *(peak * 2 ** 20 / 1e9 for peak in peaks)) in text

    modes = results("step-parts-gpu.json")["modes"]
    rows = table("results/speed.md", "part of a step, H100, ms")
    assert [row[0] for row in rows] == list(modes["ar"]["parts"])
    rates = []
    for part, *cells in rows:
        for cell, of in zip(cells, modes.values(), strict=True):
            (seconds, flops), whole = of["parts"][part], sum(seconds for seconds, _ in of["parts"].values())
            rates += [flops / seconds / 1e12] if flops else []
            rate = f", {rates[-1]:.0f} TFLOP/s" if flops else ""
            assert cell == f"{1000 * seconds:.1f} ({seconds / whole:.0%}{rate})"
    assert "run at {:.0f}0 to {:.0f}0 TFLOP/s".format(min(rates) / 10, max(rates) / 10) in text
    ar, mdlm = modes["ar"]["parts"], modes["mdlm"]["parts"]
    spared = {part: 1000 * (ar[part][0] - mdlm[part][0]) for part in ar}
    more = -spared.pop("attention, fused")
    assert (f"attention, no longer causal, takes {more:.1f} ms more, all else {sum(spared.values()):.1f} "
            "less.") in text
    assert 0.45 < sum(ar[f"products of the {of}"][0] for of in ("layers", "head")) / sum(
        seconds for seconds, _ in ar.values()) < 0.55
    took = [1000 * np.median(of["ar"]["seconds"]) for of in (newer, modes)]
    assert ("a step of {:.0f} ms: **not reached**, it takes {:.0f} (H100: {:.0f})."
            ).format(1000 * tokens / 550000, *took) in text

    tried = [results(f"speed-tried-{of}.json")["seconds"] for of in ("gpu", "h200")]
    ratios = [{name: f"{np.median(np.divide(of, seconds['tuned'])):.2f}" for name, of in seconds.items()}
              for seconds in tried]
    assert [row[:3] for row in table("results/speed.md", "tried |")] == [
        [f"`{name}`", *(of.get(name, "") for of in ratios)] for name in ratios[0] | ratios[1]
        if name != "tuned"]
    assert f"on an H100 [{float(ratios[0]['cross_entropy']) - 1:.0%}](#on-a-gpu)." in text

    same = results("gpu-smoke.json")["found"]
    exact, rounded = (max(same[f"{mode}: {name}"] for mode in found["train"])
                      for name in ("float32, here − CPU, 20 steps", "bfloat16 compiled − float32"))
    assert f"the CPU's losses to {exact:.0e} nats".replace("e-0", "e-") in text
    assert all(same[f"{mode}: sampled tokens equal to the CPU's"] == 1 for mode in found["train"])
    assert "of four stories each the GPU samples all tokens as the CPU does" in text
    assert f"compiled, stay within {rounded:.3f} nats of float32" in text
    assert f"on an H100 [{rounded:.3f}](speed.md#on-a-gpu)" in prose("results/trust.md")

    seconds = results("speed-eager-gpu.json")["seconds"]
    tuned, float32 = (np.median(np.divide(seconds[of], seconds["eager"]))
                      for of in ("tuned", "eager_float32"))
    assert ("`ar`'s {:.1f} times in another run bfloat16 alone gives {:.1f}, compiling the other {:.1f} "
            ).format(float32 / tuned, float32, 1 / tuned) in text
    ours, separately, theirs = results("speed-muon-gpu.json")["seconds"].values()
    for of, then in (theirs, "; {:.0f} ms against {:.0f}; ".format(
            *(1000 * np.median(seconds) for seconds in (ours, theirs)))), (separately, "): no difference"):
        ratio = np.divide(of, ours)
        assert (f"takes {np.median(ratio):.2f} times as long (by round {ratio.min():.2f} to "
                f"{ratio.max():.2f}{then}") in text

def test_cost_of_sampling_on_a_gpu():
    rows, text = [], prose("results/sampling.md")
    for row in results("sampling-cost-gpu.json")["sample"]:
        s = row["seconds"]
        rows.append([f"{row['stories']}", *(f"{s[name]:.1f}" for name in (
            "ar", "ar, no cache", "ar, bf16", "aogpt", "mdlm")), f"{row['ratios']['mdlm ÷ aogpt']:.1f}",
            *(f"{s[f'{name}, few' + steps]:.2f}" for name, steps in (
                ("aogpt", " steps"), ("ancestral", ""), ("confidence", "")))])
    assert table("results/sampling.md", "H100, stories at once") == rows
    one, many = (row["seconds"] for row in results("sampling-cost-gpu.json")["sample"])
    passes = [1000 * one[name] / 512 for name in ("ar", "ar, no cache", "ar, bf16", "aogpt", "mdlm")]
    assert "takes {:.0f} to {:.0f} ms, about".format(min(passes), max(passes)) in text
    assert one["ar, no cache"] < one["ar"] and many["ar, no cache"] > 4 * many["ar"]    # what a cache gains
    assert "64 stories take `ar` {:.1f}, `aogpt` {:.1f} and `mdlm` {:.1f} times as long as one".format(
        *(many[mode] / one[mode] for mode in ("ar", "aogpt", "mdlm"))) in text
    assert ("`mdlm` takes {:.1f} times as long as `aogpt`, in 64 steps each {:.1f} (`ancestral`) or {:.1f} "
            ).format(many["mdlm"] / many["aogpt"], *(many[f"{name}, few"] / many["aogpt, few steps"]
                                        for name in ("ancestral", "confidence"))) in text

def test_compiled_loss():
    found = [results(f"speed-loss-{of}.json")["seconds"] for of in ("small-ar", "small-mdlm", "paper-ar")]
    [[_, *cells, _]] = table("results/speed.md", "the compiled loss")
    ratios = [np.divide(of["cross_entropy"], of["tuned"]) for of in found]
    assert cells == [f"{np.median(of):.2f}" for of in ratios]
    assert "(By round {}, {} and {}: ".format(*(f"{min(of):.2f} to {max(of):.2f}" for of in ratios)) in prose(
        "results/speed.md")

def test_slots():
    found = [results(f"speed-slots-{preset}.json")["seconds"] for preset in ("toy", "laptop")]
    for name, *cells, _ in table("results/speed.md", "time of a step |"):
        assert cells == [f"{np.median(np.divide(of[name.strip('`')], of['tuned'])):.2f}" for of in found]

def test_scaling():
    names = {"block_size": "block_size", "batch size": "batch_size", "width": "n_embd"}
    rows = {(row["mode"], row["against"]): row for row in results("scaling.json")["scaling"]}
    for what, *cells in table("results/speed.md", "a step's time against"):
        against = names.get(what, "processes")
        ar, mdlm = rows["ar", against], rows["mdlm", against]
        expected = []
        for row in (ar, mdlm):
            expected += [", ".join(f"{v}: {ms:,.0f}" for v, ms in zip(row["values"], row["ms"])),
                         f"{row['exponent']:.2f}"]
        assert cells == [*expected, f"{ar['expected']:.2f} / {mdlm['expected']:.2f}"]

def test_parts_of_a_step():
    modes, text = results("step-parts.json")["modes"], prose("results/speed.md")
    rows = table("results/speed.md", "part of a step, ms")
    assert [row[0] for row in rows] == list(modes["ar"]["parts"])
    took = {mode: np.median(of["seconds"]) for mode, of in modes.items()}
    for part, *cells in rows:
        for cell, of in zip(cells, modes.values(), strict=True):
            (seconds, flops), whole = of["parts"][part], sum(seconds for seconds, _ in of["parts"].values())
            rate = f", {flops / seconds / 1e12:.2f} TFLOP/s" if flops else ""
            assert cell == f"{1000 * seconds:.1f} ({seconds / whole:.0%}{rate})"
    peaks = [of["peak"] / 1e12 for of in modes.values()]
    assert "reaches {:.1f}, {:.1f} and {:.1f} TFLOP/s".format(*peaks) in text
    assert "a training step {:.0%}, {:.0%} and {:.0%} of that: {:.0f}, {:.0f} and {:.0f} ms".format(
        *(of["flops"] / took[mode] / of["peak"] for mode, of in modes.items()),
        *(1000 * seconds for seconds in took.values())) in text
    ar = modes["ar"]
    products = sum(seconds for part, (seconds, _) in ar["parts"].items() if part.startswith("products"))
    rest = sum(seconds for seconds, _ in ar["parts"].values()) - products
    aim = ar["flops"] / (0.35 * ar["peak"])
    assert f"have to take {1000 * aim:.0f} ms, of which the products leave {1000 * (aim - products):.0f} " \
           f"for all else, which takes {1000 * rest:.0f}:" in text
    tried = {mode: results(f"speed-tried-{mode}.json")["seconds"] for mode in ("ar", "mdlm")}
    for name, *cells, _ in table("results/speed.md", "tried there"):
        for cell, seconds in zip(cells, tried.values(), strict=True):
            of = seconds.get(name.strip("`"))
            assert cell == (f"{np.median(np.divide(of, seconds['tuned'])):.2f}" if of else "")

    laptop = results("speed-cut-laptop-ar.json")["seconds"]
    cut, short = (np.median(np.divide(laptop[of], laptop["tuned"]))
                  for of in ("cut_logits", "gradient_with_loss"))
    least, most = sorted(np.median(np.divide(of["cut_logits"], of["tuned"])) - 1 for of in tried.values())
    assert f"{least:.0%}" == f"{most:.0%}" and (f"The cut alone took {least:.0%} more time here, at "
                                                f"`--preset=laptop`'s 4,096 words {cut - 1:.0%} (") in text
    assert f"at `--preset=laptop` it gives {1 - short:.0%}, so the short way stays" in text
    least, most = sorted(1 - np.median(np.divide(of["gradient_with_loss"], of["tuned"]))
                         for of in tried.values())
    assert f"(#where-a-steps-time-goes-on-a-cpu-with-amx) {100 * least:.0f} to {most:.0%} |" in text
    ratio = np.median(np.divide(tried["ar"]["nanogpt"], tried["ar"]["tuned"]))
    assert f"nanoGPT's architecture takes {ratio:.2f} times `ar`'s time here." in text
    gains = [np.median(np.divide(of["cross_entropy"], of["tuned"])) - 1 for of in tried.values()]
    assert f"[{100 * gains[0]:.0f} to {gains[1]:.0%}](#where-a-steps" in text

def test_contention():
    rows, told = [], []
    for kind in "", "float32":
        name = "-".join(filter(None, ["contention", kind]))
        found = results(f"{name}.json")["tokens_per_second"]
        for spin in found["nothing"]:
            idle, *beside = (np.median(of[spin]) for of in found.values())
            shares = [f"{speed / idle:.0%}" for speed in beside]
            rows.append([", ".join(filter(None, [f"{int(spin):,}", kind])), f"{idle:,.0f}",
                         *(f"{speed:,.0f}" for speed in beside), ", ".join(shares)])
            told += [shares] if spin == "10000" else []
        for than in "300000", "3000":
            ratio = np.divide(found["nothing"]["10000"], found["nothing"][than])
            told.append([f"{of:.2f}" for of in (np.median(ratio), ratio.mean(), stats.sem(ratio))])
    assert table("results/speed.md", "`GOMP_SPINCOUNT` | idle") == rows
    (busy, both), usual, few, (busy_32, both_32), usual_32, few_32 = told
    text = prose("results/speed.md")
    idle, *beside = results("contention-idle-float32.json")["tokens_per_second"].values()
    busy_60, both_60 = (f"{np.median(of['10000']) / np.median(idle['10000']):.0%}" for of in beside)
    assert (f"{busy} of the speed is left then (in float32 {busy_32}, and {busy_60} in another run of "
            f"{len(idle['10000'])} rounds); two trainings at the same time have {both} each ({both_32}, "
            f"{both_60})") in text
    again = np.divide(idle["10000"], idle["300000"])
    assert (f"is {usual[1]} ± {usual[2]} times that at GNU's default of 300,000 (mean of {len(ratio)} "
            f"rounds' ratios, s.e.; the table has medians), in float32 {usual_32[1]} ± {usual_32[2]} times, "
            f"in {len(again)} rounds of another run, with the faster `mdlm`, {again.mean():.2f} ± "
            f"{stats.sem(again):.2f} (contention-idle-float32.json)") in text
    assert f"**there an idle machine loses {1 - again.mean():.0%}**" in text
    alone, *beside = results("contention-idle.json")["tokens_per_second"].values()
    ratio = np.divide(alone["10000"], alone["300000"])
    shares = [f"{np.median(of[spin]) / np.median(alone[spin]):.0%}" for spin in ("10000", "300000")
              for of in beside]
    assert ("A Xeon with AMX loses {:.0%}: {:.3f} ± {:.3f} times, in bfloat16, {} rounds; beside busy "
            "processes it keeps {}, beside another training {} (at the default {} and {}; "
            "contention-idle.json)").format(
        1 - ratio.mean(), ratio.mean(), stats.sem(ratio), len(ratio), *shares) in text
    assert (f"with 10,000: {few[1]} ± {few[2]} times on average (in float32 {few_32[1]} ± {few_32[2]})"
            in text)
    assert f"Beside a busy process per core the toy keeps {busy} of its speed." in prose("README.md")

def test_denormals():
    runs = results("denormals.json")["runs"]
    for mode, rate, steps, shares, *speeds in table("results/speed.md", "run"):
        [run] = [run for folder, run in runs.items() if f"{run['step']:,}" == steps and
                 re.fullmatch(rf"out/real/{mode.strip('`')}-500-({rate}|0-0-4000)-\d", folder)]
        assert shares == ", ".join(f"{share:.1%}" for share in run["denormal"])
        assert speeds == [*(f"{speed:,.0f}" for speed in run["tokens_per_second"]), f"{run['ratio']:.2f}"]

def test_first_command():
    files = {"": "", ", float32": "-float32"}
    found = {kind: results(f"first-command{file}.json") for kind, file in files.items()}
    runs = {}
    for kind, of in found.items():
        for run in of["runs"]:
            runs.setdefault(f"`{run['mode']}`{kind}", []).append(run)
    assert table("results/speed.md", "from an empty folder") == [
        [name, *(", ".join(f"{run[of]:.0f}" for run in seeds)
                 for of in ("seconds", "of_steps", "of_sampling")),
         ", ".join(f"{run['grammatical']:.1%}" for run in seeds)] for name, seeds in runs.items()]
    mdlm = runs["`mdlm`"][0]
    fast, slow = ([run["seconds"] for run in runs[f"`mdlm`{kind}"]] for kind in files)
    assert (f"{min(fast):.0f} to {max(fast):.0f} seconds on two cores with AMX, "
            f"{min(slow):.0f} to {max(slow):.0f} without bfloat16.") in prose("README.md")
    assert f"step 2,000: val_nll {mdlm['val_nll']:.4f}, …" in prose("README.md")
    text = prose("results/speed.md")
    for kind, sentence in (
            ("", "took {:.1f} seconds, of which importing PyTorch takes {:.1f} (means of nine"),
            (", float32", "float32 {:.1f} and {:.1f})")):
        assert sentence.format(*(np.mean([run[of] for run in found[kind]["runs"]])
                                 for of in ("of_one_story", "of_import_torch"))) in text
    starts, slower = (results(f"first-step{file}.json")["first_step"] for file in files.values())
    older = found[", float32"]["first_step"]
    for sentence, of in (
            ("in an empty folder after {:.1f} instead of {:.1f} s, the second time there after {:.1f} "
             "instead of {:.1f} (", (starts["at once"], starts["trials"])),
            ("float32: {:.1f} instead of {:.1f} and {:.1f} instead of {:.1f}, first-command-float32.json",
             (older["none"], older["trials"])),
            ("anything compiled, then ends after {:.1f} instead of {:.1f} s, the second time there after "
             "{:.1f} and {:.1f} (", (starts["at once"], starts["in turn"])),
            ("float32: {:.1f} instead of {:.1f}, then {:.1f} and {:.1f}, first-step-float32.json",
             (slower["at once"], slower["in turn"]))):
        assert sentence.format(*np.transpose([np.mean(rounds, axis=0) for rounds in of]).flatten()) in text

def test_flops_that_are_muons_own():
    """Of an (a, b) matrix, a ≤ b: five times three products, two of them with the long side."""
    def of_a_step(n_layer, n_embd, n_hidden):
        sides = (3 * n_embd, n_embd), (n_embd, n_embd), (2 * n_hidden, n_embd), (n_embd, n_hidden)
        return n_layer * sum(5 * (4 * a * a * b + 2 * a ** 3) for a, b in map(sorted, sides))

    text = prose("results/speed.md")
    toy, later = sorted({run["flops"] / run["trial"]["steps"]
                         for run in results("first-minute.json")["trials"].values()
                         if run["trial"]["optimizer"] == "muon" and run["trial"]["objective"] == "nelbo"},
                        reverse=True)
    assert f"Muon's own products, {of_a_step(2, 128, 384) / toy:.0%} more, are not counted" in text
    assert f"on the predicted tokens alone: {1 - later / toy:.0%} less a step." in text
    runs = results("real-laptop.json")["runs"]
    now = [run["curve"][-1] for folder, run in runs.items() if "was" not in folder]
    shares = [of_a_step(4, 256, 704) * last["steps"] / last["training FLOPs"] for last in now]
    assert 1 / 6.5 < min(shares) and max(shares) < 1 / 5.4 and "another sixth, are not counted" in text

def test_first_minute():
    done = results("first-minute.json")["trials"]
    assert all(first_minute.Trial(**of["trial"]).name() == name for name, of in done.items())
    _, *rows = first_minute.table_of(done)
    assert table("results/first-minute.md", "differs from") == rows
    thrice = [row for row in rows if row[2].count(",") == 2]
    [averaged] = [row[1].split()[0] for row in rows if row[0] == "final_lr=0.2, ema=0.99"]
    assert f"averages in place of the decay ({averaged})" in prose("results/speed.md")
    text = prose("results/speed.md")
    assert table("results/speed.md", "the preset but for") == thrice and f"`mdlm` in {len(rows)} ways" in text
    of = {}
    for run in done.values():
        t = run["trial"]
        of.setdefault((t["optimizer"], t["steps"], t["objective"], t["lr"]), []).append(run)
    preset, loss, muon = (of[key] for key in (("adamw", 2000, "nelbo", 2e-3), (
        "adamw", 2000, "masked_ce", 2e-3), ("muon", 1000, "nelbo", 4e-3)))
    preset = [run for run in preset if run["trial"] == done["mdlm"]["trial"] | {"seed": run["trial"]["seed"]}]
    shares = (np.mean([run["grammatical"] for run in runs]) for runs in (loss, preset))
    assert "({:.1%} on average, the preset {:.1%})".format(*shares) in text
    nearer = np.subtract(*([run["distance"] for run in runs] for runs in (preset, loss)))
    assert f"nearer to the law by {nearer.mean():.5f} nats" in text
    more = ([np.mean([run["distance"] for run in runs]), 100 * np.mean([run["grammatical"] for run in runs])]
            for runs in (of["adamw", 2600, "nelbo", 2e-3], of["muon", 2000, "nelbo", 4e-3]))
    assert ("time** gives {:.4f} nats and {:.1f}% (2,600 steps), or by Muon {:.4f} nats and {:.1f}% (2,000)"
            ).format(*sum(more, [])) in text
    times = (min(run["training_seconds"] for run in runs) for runs in (muon, preset))
    assert "(1,000 took {:.0f} seconds, the preset's 2,000 {:.0f}, the least".format(*times) in text

def test_preset_laptop():
    """Scores on the stories that chose nothing; when a run is as low as it was, by those that chose."""
    found, rows, lower = results("real-laptop.json"), {}, []
    for mode in "ar", "aogpt", "mdlm":
        pairs = list(zip(*(held_out.runs_of(found, name) for name in (mode, f"{mode}, as it was"))))
        for seed, (now, was) in enumerate(pairs, 1):
            curve = [entry for entry in now["curve"] if entry["steps"] <= now["step"]]
            losses = [-entry["val_nll"] for entry in curve]                 # they fall until the best
            low = min(was["curve"], key=lambda entry: entry["val_nll"])
            assert losses == sorted(losses) and losses[0] < -low["val_nll"] < losses[-1]
            step, second = (np.interp(-low["val_nll"], losses, [entry[of] for entry in curve])
                            for of in ("steps", "seconds of training"))
            lower.append(np.mean(was["nats"]) - np.mean(now["nats"]))
            rows[mode if len(pairs) == 1 else f"{mode}, seed {seed}"] = [
                *(cell for run in (was, now) for cell in (f"{np.mean(run['nats']):.3f}", f"{run['step']:,}")),
                f"{step:,.0f}", f"{second / low['seconds of training']:.0%}"]
    assert table("results/speed.md", "`--preset=laptop`") == [[name, *row] for name, row in rows.items()]
    told, (ar, aogpt, *mdlm) = prose("results/speed.md"), [row[-1] for row in rows.values()]
    assert f"`ar` in {ar} of the time, `aogpt` in {aogpt}, `mdlm` in {', '.join(mdlm)}**" in told
    assert "at their best they are {:.2f}, {:.2f} and {} nats lower".format(
        *lower[:2], ", ".join(f"{of:.2f}" for of in lower[2:])) in told
    orders = (held_out.runs_of(found, name)[0]["nats_l2r"] for name in ("aogpt", "aogpt, as it was"))
    assert "Left to right `aogpt` is at {:.3f}, before at {:.3f}.".format(*map(np.mean, orders)) in told
    adam = (results(f"confounds-{mode}.json")["compared"]["AdamW"]["above"] for mode in ("ar", "aogpt"))
    assert ("AdamW instead of Muon [costs `ar` and `aogpt`](confounds.md) {:.2f} and {:.2f} nats".format(
        *adam) in told)
    now = held_out.runs_of(found, "mdlm")[1]["curve"][-1]       # of the machine of all but the first seed
    each = now["seconds of training"] / now["steps"]
    assert (f"in {now['steps']:,} steps ({each:.1f} s each on an EPYC core, bfloat16)"
            in prose("README.md"))

def test_load():
    def numbers(text):
        return int(re.search(r"[\d,]+(?= MB| sam| stories of 48| tok|$)", text)[0].replace(",", ""))

    rows = [(re.search(r"\w+\.py", row["what"])[0], numbers(row["size"]), f"{row['seconds']:.0f}",
             f"{row['peak_mb']:,.0f}") for row in results("load.json")["rows"]]
    shown = [(re.search(r"\w+\.py", row[0])[0], numbers(row[i]), *row[i + 1:i + 3])
             for row in table("results/trust.md", "| size | seconds") for i in (1, 4)]
    assert sorted(shown) == sorted(rows)

def test_trials_are_what_their_names_say():
    """With today's defaults, so that a later call takes them for what they are."""
    for name, found in results("few-stories.json")["trials"].items():
        assert few_stories.Trial(**found["trial"]).name() == name
        assert not found["commit"].endswith("dirty")

def test_widths():
    done = results("few-stories.json")["trials"]
    _, *rows = few_stories.table_of("widths", few_stories.kinds_of(done)["widths"])
    found = {}          # name: mean ± s.d. at each width, then the exponent and its interval
    for name, *cells in rows:
        name, is_slope, _ = name.partition(": exponent")
        found.setdefault(name, []).append(f"{cells[0]} ({cells[1]})" if is_slope else cells[3])
    assert {name: cells for name, *cells in table("results/few-stories.md", "all stories, width")} == found

def test_few_stories():
    done = results("few-stories.json")["trials"]
    _, *rows = few_stories.table_of("sizes", few_stories.kinds_of(done)["sizes"])
    shown = [[row[column] for column in (0, 1, 2, 3, 4, 5, 7)] for row in rows]
    page = prose("results/few-stories.md")
    for head, mine in ("trained on few stories", True), ("other numbers of stories", False):
        cells = table("results/few-stories.md", head)
        assert cells == [row for row in shown if (row[1] == "1,000") == mine]
    runs = {stories: [run for run in done.values() if run["trial"]["stories"] == stories and
                      (run["trial"]["orders"], run["trial"]["repeat"], run["trial"]["target_embedding"])
                      == (0, 0, True)] for stories in (300, 1000)}
    for stories, several in runs.items():
        turned = {mode: [run["best"]["turned"] for run in several if run["trial"]["mode"] == mode]
                  for mode in ("ar", "mdlm", "aogpt")}
        told = {mode: f"{sum(of)} of {len(of)}" for mode, of in turned.items()}
        if stories == 300:
            dropped = [run["best"]["turned"] for run in several
                       if (run["trial"]["mode"], run["trial"]["dropout"]) == ("mdlm", 0.5)]
            assert (f"{told['ar']} of `ar` turned, {told['aogpt']} of `aogpt`, {told['mdlm']} of `mdlm` "
                    f"(with dropout of 0.5: {sum(dropped)} of {len(dropped)})") in page
        else:
            bounds = turned["mdlm"] + turned["aogpt"]
            assert (f"{told['ar']} runs of `ar` turned in 64 to 128 epochs, by their bounds {sum(bounds)} of "
                    f"{len(bounds)} of") in page
            assert (f"; {told['ar']} `ar` runs rose again, no bound (of 300, bounds too)."
                    in prose("README.md"))
            ordered = [run["left_to_right"]["turned"] for run in several if "left_to_right" in run]
            assert f"(`aogpt` read from left to right: {sum(ordered)} of {len(ordered)})" in page

    _, *rows = few_stories.table_of("why", few_stories.kinds_of(done)["why"])
    assert sorted(table("results/few-stories.md", "1,000 stories")) == sorted(rows)

    def of(mode, lr, dropout=0.0, noise=0.0):
        """{seed: run} over 1,000 stories"""
        return {run["trial"]["seed"]: run for run in runs[1000]
                if [run["trial"][name] for name in ("mode", "lr", "dropout", "noise", "weight_decay")]
                == [mode, lr, dropout, noise, 0.01]}

    def after(step, several):
        return np.mean([dict(zip(several[seed]["curve"]["step"], several[seed]["curve"]["bound"]))[step]
                        for seed in few_stories.SEEDS])

    ar, mdlm, helped = of("ar", 6e-3), of("mdlm", 1.5e-3), of("ar", 1.5e-3, 0.3, 0.3)
    steps = mdlm[1]["curve"]["step"]
    first = next(step for step in steps if after(step, mdlm) < after(125, ar) + 5e-4)
    assert f"at {after(125, ar):.3f} after four epochs, where `mdlm` is at {after(125, mdlm):.2f}" in page
    epochs = f"{first * 32 / 1000:.0f}"
    assert f"`mdlm` is at {after(first, mdlm):.3f} after {epochs}." in page
    assert (f"its loss is {after(125, ar):.3f} nats above the law's after 4 epochs (`mdlm`'s after {epochs}),"
            in prose("README.md"))
    usual = of("ar", 1.5e-3)[0]["best"]
    assert f"it turns after {usual['epochs']:.0f} epochs, at {usual['distance']:.3f}" in page
    assert f"bound ({mdlm[0]['best']['distance']:.4f}, seed 0) beats `ar` at a rate of 1.5e-3" in page
    dropped = of("mdlm", 1.5e-3, 0.3)
    distances = [f"{dropped[seed]['best']['distance']:.4f}" for seed in sorted(dropped)]
    assert f"{', '.join(distances[:-1])} and {distances[-1]} with seeds 0, 1, 2, 4, 5" in page
    nearer = {seed: helped[seed]["best"]["distance"] - run["left_to_right"]["distance"]
              for seed, run in of("aogpt", 1.5e-3, 0.3).items()}
    choosing = [nearer[seed] for seed in few_stories.CHOOSING]
    assert len(nearer) == 6 and min(nearer.values()) > 0
    assert f"by just {min(choosing):.4f} to {max(choosing):.4f}" in page
    wrong = [f"{1 - run['samples']['grammatical']:.0%}" for run in (helped[1], mdlm[3])]
    ends = [f"{run['best']['distance']:.4f}" for run in (helped[1], mdlm[3])]
    assert f"({ends[0]} and {ends[1]}; {wrong[0]} and {wrong[1]} of their stories are wrong)" in page

    def wrote(stories, when):
        """(Stories written, copies of training stories), by each of the models."""
        found = [run for run in done.values() if run["trial"]["stories"] in stories and when in run]
        return 300 * len(found), [round(300 * run[when]["copied"]) for run in found]

    for when in ("samples", "samples_at_the_end"):
        assert not any(wrote((1000, 3000, 10000), when)[1])
    assert f"None of {wrote((1000,), 'samples')[0]:,} stories, of these and two more runs, is" in page
    written, best = wrote((300,), "samples")
    _, last = wrote((300,), "samples_at_the_end")
    share = sum(wrote((0,), "samples")[1]) / wrote((0,), "samples")[0]
    by_law = np.mean([run["samples"]["copied_by_law"] for run in done.values()
                      if run["trial"]["stories"] == 0 and "samples" in run])
    assert f"Over 300 stories {sum(best)} of {written:,} stories written at the best step is" in page
    assert f"{sum(last)} of {written:,} at the end" in page
    assert f"Over all, {share:.2%} are, and of the law's own {by_law:.2%} would be" in page
    spans = {}
    for run in done.values():
        t = run["trial"]
        if t["stories"] == 300 and t["seed"] in few_stories.SEEDS:
            spans.setdefault(t["mode"], []).append(run["best"]["distance"])
    for mode in ("ar", "mdlm"):
        assert len(spans[mode]) == 6 and f"{min(spans[mode]):.3f} to {max(spans[mode]):.3f})" in page

def test_real():
    found, text = results("real-all.json"), prose("results/real.md")
    gaps = [found["compared"][name]["above"] for name in ("aogpt", "mdlm", "aogpt, left to right")]
    assert ("bound ends {:.2f} nats above `ar`'s best, `mdlm`'s {:.2f}; read from left to right, where "
            "`aogpt`'s likelihood is exact, it is {:.2f} above".format(*gaps)) in text
    at = {(mode, step): np.mean([entry["val_nll"] for seed in (1, 2, 3)      # mdlm predicts half
                                 for entry in found["runs"][f"out/real/{mode}-all-0.008-{seed}"]["curve"]
                                 if entry["steps"] == step])
          for mode, step in (("mdlm", 250), ("aogpt", 125), ("mdlm", 1000), ("aogpt", 500),
                             ("mdlm", 1500), ("aogpt", 750))}
    assert ("on average {:.2f} against {:.2f} after half a million, {:.2f} against {:.2f} after two, and "
            "{:.2f} at its end, three, against {:.2f}".format(*at.values())) in text
    rates = [[np.mean(found["runs"][f"out/real/aogpt-all-{lr}-1"][of]) for lr in ("0.032", "0.008")]
             for of in ("nats", "nats_l2r")]
    assert "{:.3f} against {:.3f}, from left to right {:.3f} against {:.3f}".format(*sum(rates, [])) in text
    rows = [held_out.row_of(name, of) for name, of in found["compared"].items()]
    assert table("results/real.md", "all stories, 1,500 steps") == rows
    ours, bound, aogpt = ([found["runs"][f"out/real/{name}-all-0.008-{seed}"] for seed in (1, 2, 3)]
                          for name in ("mdlm-masked_ce", "mdlm", "aogpt"))
    lower, higher = held_out.compare(ours, bound), held_out.compare(ours, aogpt)
    assert f"is lower**: by {-lower['above']:.3f} ± {lower['error']:.3f} (s.e.)" in text
    assert f"as low as `aogpt`'s ({higher['above']:.3f} ± {higher['error']:.3f} above it)" in text
    assert f"{-lower['above']:.2f} in [real.md](real.md) in 1,500" in prose("results/weights.md")
    assert f"on real text it gains {-lower['above']:.2f} nats" in prose("results/speed.md")
    assert f"they hold {found['share_of_tokens']:.1%} of the tokens" in text
    runs = results("real-orders.json")["runs"]
    assert table("results/real.md", "in this order") == orders.table_of(runs, "orders")[1:]
    for mode, part in ("mdlm", "`mdlm` is {:.2f} nats below"), ("aogpt", "tenth of its rows, {:.2f}."):
        random, forwards = (np.mean([run["orders"][order] for run in runs[mode]])
                            for order in ("random (the bound)", "left to right"))
        assert part.format(random - forwards) in text
    best = {folder: min(entry["val_nll"] for entry in run["curve"])
            for name in ("lr", "all", "500")
            for folder, run in results(f"real-{name}.json")["runs"].items()}
    rates = "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2", "6.4e-2"
    for name, *cells in table("results/real.md", "learning rate"):
        mode, steps = name.replace(" by ", "-").split(", ")
        folders = [f"out/real/{mode}-lr-{rate}" if steps == "500 steps" else
                   f"out/real/{mode}-{'500' if steps == '500 stories' else 'all'}-{float(rate):g}-1"
                   for rate in rates]
        assert cells == [f"{best[folder]:.3f}" if folder in best else "" for folder in folders]

def test_real_text_ten_times_as_long():
    found, short = (results(f"real-{name}.json")["compared"] for name in ("longer", "all"))
    assert table("results/real.md", "all stories, longer") == [
        held_out.row_of(name, of) for name, of in found.items()]
    text, runs = prose("results/real.md"), results("real-longer.json")["runs"]
    curves = {name: {entry["steps"]: entry["val_nll"] for entry in run["curve"]}
              for name, run in ((folder.removeprefix("out/real/"), run) for folder, run in runs.items())}
    went = [f"{of[name]['above']:.2f}" for name in ("mdlm", "aogpt", "aogpt, left to right")
            for of in (short, found)]
    assert ("from {} to {} nats above it for `mdlm`, from {} to {} for `aogpt`, and from {} to {} for "
            "`aogpt` from left to right").format(*went) in text
    pairs = [[curves[f"{mode}-longer-{seed}"] for mode in ("mdlm", "aogpt")] for seed in (1, 2, 3)]
    firsts = [min(step for step in mdlm if mdlm[step] < aogpt[step]) for mdlm, aogpt in pairs]
    assert all((mdlm[step] < aogpt[step]) == (step >= first)
               for first, (mdlm, aogpt) in zip(firsts, pairs) for step in mdlm)
    mdlm, aogpt = ("{:.3f}, {:.3f} and {:.3f}".format(*(curve[2500] for curve in of)) for of in zip(*pairs))
    lower = np.subtract(found["aogpt"]["seeds"], found["mdlm"]["seeds"])
    assert (f"after 2,500 steps ({mdlm} against {aogpt} on the stories that choose), lower from {{:,}}, "
            "{:,} and {:,} on, and {:.2f}, {:.2f} and {:.2f} lower at the end").format(
                *firsts, *lower) in text
    beside = held_out.compare(*(held_out.runs_of(results(f"real-{name}.json"), "ar")
                                for name in ("longer", "all")))
    assert abs(beside["above"]) < beside["half"]        # not resolved
    assert f"as low as there ({-beside['above']:.2f} ± {beside['half']:.2f} below, 95%), and changed" in text
    gain = held_out.compare(*(held_out.runs_of(results("real-longer.json"), name)
                              for name in ("mdlm by masked_ce", "mdlm")))
    assert -gain["above"] > gain["half"]
    gain = f"{-gain['above']:.3f} ± {gain['error']:.3f}"
    assert f"by {gain} (s.e.)" in text
    assert f"in 1,500, and {gain[:4]} in 15,000." in prose("results/weights.md")
    assert f"it is ahead by {gain} (s.e.; three seeds" in prose("results/weights.md")
    loss, masked_ce = (np.mean([[*curves[f"{name}-longer-{seed}"].values()] for seed in (1, 2, 3)], axis=0)
                       for name in ("mdlm", "masked_ce"))
    ahead = dict(zip(curves["mdlm-longer-1"], loss - masked_ce))
    assert (f"by {ahead[500]:.3f} after 500 steps, {ahead[5000]:.3f} after 5,000 and {ahead[15000]:.3f} at "
            "the end.") in text and min(ahead.values()) > 0
    seed_1 = [np.mean(runs[f"out/real/{name}-longer-1"]["nats"]) for name in ("mdlm-masked_ce", "masked_ce")]
    assert "seed 1 in float32, on another machine: {:.3f} instead of {:.3f}".format(*seed_1) in text
    ends = [[*curves[f"ar-longer-0.008-{seed}"].values()][-4:] for seed in (1, 2, 3)]
    change = max(abs(end[-1] - of) for end in ends for of in end)
    assert f"and changed by at most {change:.3f} in its last 300 steps." in text
    rates = [min(curves[f"ar-longer-{lr}-1"].values()) for lr in ("0.004", "0.008")]
    assert f"where seed 1 is {rates[0] - rates[1]:.3f} nats better than at 0.004 on the stories that" in text

def of_sizes(name):
    """Of real text, each seed: 1.4M and 28M parameters in 1,500 steps, then in longer runs."""
    big, short, longer = (results(f"real-{of}.json")["compared"] for of in ("bigger", "all", "longer"))
    mode, *left = name.split(", ")
    shorter_big, longer_big = (big[", ".join([mode, steps, *left])] for steps in ("1,500 steps", "longer"))
    return [of["seeds"] for of in (short[name], shorter_big, longer[name], longer_big)]

def test_how_much_more_training():
    """When ar has what masked_ce's bound ends with, and by what share of its FLOPs."""
    def reached(mdlm, ar):
        end = min(mdlm["curve"], key=lambda entry: entry["val_nll"])
        there = next(entry for entry in ar["curve"] if entry["val_nll"] < end["val_nll"])
        return end, there["steps"], there["training FLOPs"] / end["training FLOPs"]

    small, big = (results(f"real-{name}.json")["runs"] for name in ("longer", "bigger"))
    ends, after, of_small = zip(*(reached(*(small[f"out/real/{name}-{seed}"] for name in (
        "masked_ce-longer", "ar-longer-0.008"))) for seed in (1, 2, 3)))
    text = prose("results/real.md")
    assert ("is lowest, {:.3f}, {:.3f} and {:.3f} on the stories that choose, after {:,}, {:,} and {:,} "
            "steps.").format(*(end["val_nll"] for end in ends), *(end["steps"] for end in ends)) in text
    assert ("has as low a loss after {}, {} and {}, with {:.0%}, {:.0%} and {:.0%} of the FLOPs."
            ).format(*after, *of_small) in text
    ends, after, shares = zip(*(reached(*(big[f"out/bigger/{mode}-longer{seed}"] for mode in ("mdlm", "ar")))
                                for seed in ("", "-2", "-3")))
    assert {end["steps"] for end in ends} == {8000}
    assert ("end after 8,000 steps; `ar` is as low after {}, {} and {}, with {:.0%}, {:.0%} and {:.0%}."
            ).format(*after, *shares) in text
    assert (f"ends with in the last two rows, `ar` has with {np.mean(of_small):.0%} and "
            f"{np.mean(shares):.0%} of the FLOPs.") in prose("README.md")

def test_twenty_times_the_parameters():
    short, longer = (results(f"real-{name}.json")["compared"] for name in ("all", "longer"))
    text, columns = prose("results/real.md"), {name: of_sizes(name) for name in (
        "ar", "mdlm", "mdlm by masked_ce", "aogpt", "aogpt, left to right")}
    rows = [[name, *(f"{np.mean(seeds):.4f}" + (f" ± {np.std(seeds, ddof=1):.4f}" if len(seeds) > 1 else "")
                     for seeds in of)] for name, of in columns.items()]

    def apart(mode, other, which, key="nats"):
        return held_out.compare(*(held_out.runs_of(results("real-bigger.json"), f"{of}, {which}")
                                  for of in (mode, other)), key)

    above = {}
    for name in list(columns)[1:]:
        mode, *left = name.split(", ")
        key = "nats_l2r" if left else "nats"
        big = [apart(mode, "ar", which, key) for which in ("1,500 steps", "longer")]
        above[name] = short[name], big[0], longer[name], big[1]
    rows += [[f"{name}, above `ar`", *(f"{of['above']:.2f} ± {of['error']:.2f}" for of in gaps)]
             for name, gaps in above.items()]
    assert table("results/real.md", "all stories | 1.4M") == rows
    assert {len(of) for columns in columns.values() for of in columns} == {3}
    runs = results("real-bigger.json")["runs"]
    best = {folder: min(entry["val_nll"] for entry in run["curve"]) for folder, run in runs.items()}
    rates = table("results/real.md", "28M, learning rate")
    for mode, (_, *cells) in zip(("ar", "bound", "mdlm", "aogpt"), rates, strict=True):
        assert cells == [f"{best[f'out/bigger/{mode}-lr-{lr}']:.3f}"
                         for lr in ("0.001", "0.002", "0.004", "0.008")]
        assert min(cells) == cells[1]
    gaps = [of["above"] for of in above["mdlm by masked_ce"]]
    assert ("over `masked_ce` by {1:.2f} nats instead of {0:.2f} in 1,500 steps, and in longer runs by "
            "{3:.2f} instead of {2:.2f}, ").format(*gaps) in text
    ar, bound, mdlm, aogpt, left = ([np.mean(seeds) for seeds in of] for of in columns.values())
    assert f"ends {left[3] - ar[3]:.2f} above `ar`, no nearer" in text and left[3] - ar[3] > left[2] - ar[2]
    lead, behind = ([apart(*modes, which) for which in ("1,500 steps", "longer")]
                    for modes in (("aogpt", "mdlm by masked_ce"), ("mdlm", "mdlm by masked_ce")))
    assert lead[0]["half"] > abs(lead[0]["above"])      # level
    assert ("(`masked_ce` {:.2f} ± {:.2f} below; 1.4M: {:.2f} above), and at the end it is {:.2f} ± {:.2f} "
            "below `aogpt` (1.4M, after nearly twice the steps: {:.2f})").format(
                lead[0]["above"], lead[0]["error"], mdlm[0] - aogpt[0], lead[1]["above"], lead[1]["error"],
                aogpt[2] - mdlm[2]) in text
    assert ("is {:.2f} ± {:.2f} behind `masked_ce` after 1,500 steps and {:.2f} ± {:.2f} at the end (1.4M: "
            "{:.2f} and {:.2f})").format(
                *(of[key] for of in behind for key in ("above", "error")), bound[0] - mdlm[0],
                bound[2] - mdlm[2]) in text
    assert ("by {:.2f} ± {:.2f} after 1,500 steps and by {:.2f} ± {:.2f} after 8,000.").format(
        *(of[key] for of in behind for key in ("above", "error"))) in prose("results/weights.md")

    last = {folder: run["curve"][-1]["val_nll"] for folder, run in runs.items()}

    def overfits(*folders):
        """When they were best, in epochs, and by how much they climb from there, least and most."""
        [epochs] = {f"{runs[folder]['epochs']:.1f}" for folder in folders}
        climbs = [last[folder] - best[folder] for folder in folders]
        return epochs, min(climbs), max(climbs)

    seeds = [[f"out/bigger/ar-{name}{seed}" for seed in ("", "-2", "-3")] for name in ("lr-0.002", "longer")]
    epochs, least, most = overfits(*seeds[0])
    assert (f"after {epochs} epochs of 4.4 in all three seeds, not after {short['ar']['epochs'][0]:.1f} as "
            f"with 1.4M, and from there it climbs by {least:.2f} to {most:.2f} on the stories that choose "
            "(at 0.001 by {:.2f})").format(overfits("out/bigger/ar-lr-0.001")[1]) in text
    epochs, _, most = overfits(*(f"out/bigger/ar-lr-{lr}" for lr in ("0.004", "0.008")))
    assert f"rates it is at its best after {epochs}, and climbs by {most:.3f} at most." in text
    epochs, least, most = overfits(*seeds[1])
    assert (f"best is after {epochs} epochs of 8.9, and it climbs by {least:.3f} to {most:.3f}. "
            "No bound turned.") in text
    assert all(best[folder] == last[folder] for folder in runs if "/ar-" not in folder)     # no bound turned

def test_confounds():
    text, readme = prose("results/confounds.md"), prose("README.md")
    mdlm, ar, aogpt = (results(f"confounds-{mode}.json")["compared"] for mode in ("mdlm", "ar", "aogpt"))
    gaps, rates = results("confounds.json")["gaps"], results("confounds-rates.json")["runs"]
    for mode, found in ("mdlm", mdlm), ("ar", ar), ("aogpt", aogpt):
        rows = [held_out.row_of(name, of)[:4] for name, of in found.items()]
        assert table("results/confounds.md", f"{mode}, 1,000 steps") == rows

    def by(of):
        return f"{of['above']:.2f} ± {of['half']:.2f}".replace("-", "−")

    rows = [[name, by(of)] for name, of in gaps.items()]
    assert table("results/confounds.md", "`mdlm` above `ar`") == rows
    assert all(of["above"] > of["half"] for of in gaps.values())        # ar leads in every row
    apart = [f"{gaps[name]['above']:.1f}" for name in ("as it is", "all of it")]
    assert ("In 1,000 steps (1.4M) `ar` leads `mdlm` by {} nats, by {} if both do all that the paper does in "
            "20,000 ").format(*apart) in readme
    by_rate = {}
    for folder, run in rates.items():
        name, rate = folder.split("/")[-1].split("-rate-")
        by_rate.setdefault(name, {})[rate] = min(entry["val_nll"] for entry in run["curve"])
    best = {name: min(tried, key=tried.get) for name, tried in by_rate.items()}
    for words in ("the best after 500 steps (seed 4): {mdlm-as-it-is}; where",
                  "its init {mdlm-its-init-untied-head} (`ar` {ar-its-init}), "
                  "AdamW {mdlm-AdamW} ({ar-AdamW}), all of it {mdlm-all-of-it} ({ar-all-of-it}).",
                  "has {aogpt-bfloat16}, the best in bfloat16, with AdamW {aogpt-AdamW}, both after 1,000"):
        assert words.format(**best) in text
    start, time, common = (mdlm[name] for name in (
        "its init, untied head", "its init, head, time", "no common vector"))
    uniform, as_it_is = mdlm["masked_ce, uniform schedule"], mdlm["as it is"]
    whole, cut = (ar[f"its windows{where}"] for where in ("", ", on the paper's windows"))

    def seeds(of):
        return ", ".join(f"{nats:.2f}" for nats in of["seeds"])

    for slow in common, mdlm["AdamW"]:
        assert min(slow["seeds"]) > max(as_it_is["seeds"]) and slow["above"] < slow["half"]
    of_mdlm = results("confounds-mdlm.json")
    with_time, without = (held_out.runs_of(of_mdlm, name)
                          for name in ("its init, head, time", "its init, untied head"))
    unresolved = [mdlm[name] for name in ("untied head", "its schedule", "its windows", "time embedding")]
    untold = mdlm["no target embedding"]
    assert all(abs(of["above"]) < of["half"] for of in unresolved)
    assert max(uniform["seeds"] + untold["seeds"]) < min(as_it_is["seeds"])
    for words in (
            f"costs `mdlm` {by(untold).removeprefix('−')}.** ", f"below all as it is ({seeds(untold)}). "
            f"`ar` changes by {by(ar['no target embedding'])}.",
            f"end at {seeds(common)}, with it at {seeds(as_it_is)}: ", f"mean is {by(common)} above",
            f"`ar` loses {by(ar['no common vector'])}.",
            f"`mdlm` (with its untied head) {by(start)} nats, `ar` {by(ar['its init'])}.",
            f"ends at {seeds(time)}, {by(time)} above as it is.",
            f"resolve it ({by(held_out.compare(with_time, without))})",
            f"without it {by(aogpt['no target embedding'])} (left to right "
            f"{by(aogpt['no target embedding, left to right'])})",
            f"costs `ar` {by(ar['AdamW'])}, `aogpt` {by(aogpt['AdamW'])} (left to right "
            f"{by(aogpt['AdamW, left to right'])}); `mdlm` {by(mdlm['AdamW'])}, not resolved, though each "
            f"seed ({seeds(mdlm['AdamW'])}) is above all of Muon's; its",
            f"leaves the bound {by(uniform).removeprefix('−')} nats lower",
            f"make `ar` {-cut['above']:.3f} ± {cut['half']:.3f} better on such windows and "
            f"{whole['above']:.3f} ± {whole['half']:.3f} worse on",
            f"changes `mdlm` by {by(mdlm['bfloat16'])}, `ar` by {by(ar['bfloat16'])}: nothing to see",
            f"costs `ar` {by(ar['untied head'])}; the paper's **warm-up and decay** change it by "
            f"{by(ar['its schedule'])}.", f"resolve: {', '.join(map(by, unresolved))}.",
            f"in a thousand steps**: {np.mean(mdlm['all of it']['seeds']):.2f} nats",
            f"gap is {by(gaps['its init, head, time'])}, and {by(gaps['as it is'])} as it is",
            f"grows to {by(gaps['all of it'])} with all of it: `mdlm` loses {mdlm['all of it']['above']:.2f} "
            f"by that, `ar` {ar['all of it']['above']:.2f}.",
            f"narrows it to {by(gaps['masked_ce, uniform schedule'])}, no target embedding to "
            f"{by(gaps['no target embedding'])}."):
        assert words in text
    longer = results("real-all.json")
    told, not_told = (held_out.runs_of(longer, name) for name in ("mdlm", "mdlm, no target embedding"))
    left = by(held_out.compare(not_told, told))
    assert f"longer training `mdlm` changes by {left} (real-all.json)" in text
    assert f"costs `mdlm` {untold['above']:.2f}".replace("-", "") in prose("results/real.md")
    assert f"changes `mdlm` by {left} (95%, not resolved)" in prose("results/real.md")
    runs = {name: of["seeds"] for name, of in longer["compared"].items()}
    ends, bound = (f"{np.mean(runs[name]):.4f} ± {np.std(runs[name], ddof=1):.4f}"
                   for name in ("mdlm by masked_ce", "mdlm"))
    assert f"`masked_ce` ends at {ends}, where those trained on the bound have {bound} " in text
    sizes = dict(vocab_size=4096, block_size=256, n_layer=4, n_head=4, n_embd=128, n_hidden=352)
    every, selected = (flops_per_token(Config("mdlm", objective="masked_ce", schedule=schedule, **sizes))
                       for schedule in ("cosine", "uniform"))
    assert f"a step takes {every / selected - 1:.0%} more FLOPs" in text

def test_orders():
    text, runs = prose("results/orders.md"), results("orders.json")["runs"]
    found = results("orders-held-out.json")
    of = found["compared"]
    assert table("results/orders.md", "aogpt, 1,000 steps") == [
        held_out.row_of(name, row)[:4] for name, row in of.items()]
    assert table("results/orders.md", "in this order") == orders.table_of(runs, "orders")[1:]
    assert table("results/orders.md", "orders mixed, K") == [
        row for row in orders.table_of(runs, "mixture")[1:] if row[0] in ("1", "4", "16", "64")]

    def between(name, other, *keys):
        return by(held_out.compare(held_out.runs_of(found, name), held_out.runs_of(found, other), *keys))

    fewer, tenth = ({order: np.mean([run["orders"][order] for run in runs[name]]) for order in (
        "left to right", "right to left", "blocks of 64", "random (the bound)")}
        for name in ("l2r_fraction 0", "as it is"))
    forwards, random = tenth["left to right"], tenth["random (the bound)"]
    least, mean = forwards + np.log(10) / 256, 0.1 * forwards + 0.9 * random
    spreads = [run["spread"] for run in runs["as it is"]]
    said = {name: np.mean([run[name] for run in spreads]) for name in spreads[0]}
    last = np.mean([run["mixture"]["32"] - run["mixture"]["64"] for run in runs["as it is"]])
    rates = {folder.split("-")[-1]: min(entry["val_nll"] for entry in run["curve"]) for folder, run
             in results("confounds-rates.json")["runs"].items() if "/aogpt-bfloat16" in folder}
    assert min(rates, key=rates.get) == "0.016" and f"{min(rates)} to {max(rates)} (seed 4)" in text
    for words in (
            f"costs the bound nothing** ({by(of['l2r_fraction 0'])}) and makes the network "
            f"{by(of['l2r_fraction 0, left to right'])} better", f"loses {by(of['l2r_fraction 0.5'])}, for "
            f"another {by(of['l2r_fraction 0.5, left to right'])} from",
            f"`ar` leads by {between('as it is', 'ar', 'nats_l2r')} with a tenth, by "
            f"{between('l2r_fraction 0.5', 'ar', 'nats_l2r')} with a half.",
            f"from left to right: {np.mean(of['no rotation']['seeds']):.2f}, where they score about "
            f"5.9, and {np.mean(of['no rotation, left to right']['seeds']):.2f} from",
            f"vector gives {by(of['no common vector'])}**: little",
            f"rotation it gives nothing ({between('neither', 'no rotation')})",
            f"`--l2r_fraction=0`: {fewer['left to right']:.2f} and {fewer['blocks of 64']:.2f}, at random "
            f"{fewer['random (the bound)']:.2f}); right to left is "
            f"{fewer['random (the bound)'] - fewer['right to left']:.2f} below random.",
            f"last doubling still took {last:.3f}.",
            f"blocks of 64 are at {tenth['blocks of 64']:.2f}, left to right at {forwards:.2f}.",
            f"64 orders take {said['bound above the largest mixture']:.2f} off",
            f"variance of {said['variance of ln p over orders']:.0f} (as it is), so that of 64 on average "
            f"{said['orders that count']:.1f} count",
            f"below the bound, {said['half of it per token']:.2f} a",
            f"at most {forwards:.2f} + ln 10 / 256 = {least:.2f}, and the mean of −log p is {mean:.2f}.",
            f"from `ar` at least {mean - least:.2f} (before rounding) is slack",
            f"The {between('as it is', 'ar', 'nats_l2r').split(' ')[0]} from left to right are not slack"):
        assert words in text

def test_adapt():
    text, runs = prose("results/adapt.md"), {}
    for mode in ("ar", "mdlm", "aogpt"):
        found = results(f"adapt-{mode}.json")
        assert table("results/adapt.md", f"{mode}, by what came first") == [
            held_out.row_of(name, of)[:4] for name, of in found["compared"].items()]
        runs |= {name: held_out.runs_of(found, name) for name in found["names"]}

    def between(name, other, *keys):
        return by(held_out.compare(runs[name], runs[other], *keys))

    def after_50(name, loss="val_nll"):
        return sorted(run["curve"][0][loss] for run in runs[name])

    def range_of(values, digits=0):
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

    words = next(iter(results("plateau.json")["trials"].values()))["unigram"]
    ends = [[plateau.ended({"unigram": words, "curve": [entry | {"step": entry["steps"]} for entry in curve]})
             for curve in (run["curve"] for run in runs[f"{name}, 500 steps"])]
            for name in ("mdlm", "mdlm-plain")]
    flops = [runs[name][0]["curve"][-1]["training FLOPs"] for name in ("mdlm from ar", "mdlm")]
    of_ar = max(run["curve"][-1]["val_nll"] for run in runs["ar, 500 steps"])
    assert max(after_50("mdlm from ar plain")) < words - 0.3
    for said in (
            f"500 as `mdlm` end {between('mdlm from ar', 'mdlm from mdlm')} nats lower than after 500 as "
            f"`mdlm`, and {between('mdlm from ar', 'mdlm')} lower than 1,000 in one go, for "
            f"{flops[0] / flops[1] - 1:.0%} more", f"bound is at {range_of(after_50('mdlm from ar'), 2)} (on",
            f"gets in {range_of(ends[0])} steps, and plain in {range_of(ends[1])}.",
            f"lead to {range_of(after_50('mdlm from ar plain'), 2)}, and "
            f"the end is still {between('mdlm from ar plain', 'mdlm from mdlm')} below",
            f"Its bound is {between('aogpt from ar', 'aogpt, 500 steps')} lower than after 500 steps from "
            f"scratch, and {between('aogpt from ar', 'aogpt from aogpt')} higher than",
            f"(from {of_ar:.2f} to "
            f"{min(after_50('aogpt from ar', 'val_nll_l2r')):.2f} or more on", f"and ends "
            f"{between('aogpt from ar', 'aogpt from aogpt', 'nats_l2r', 'nats_l2r')} above those that",
            f"an `aogpt`**: {between('ar from aogpt', 'ar, 500 steps')}, where 500 more steps of its "
            f"own give {between('ar from ar', 'ar, 500 steps')}"):
        assert said in text

def test_weights():
    found, text = results("weights.json"), prose("results/weights.md")
    rows = table("results/weights.md", "trained on")
    assert [[row[0], *row[3:]] for row in rows] == [
        held_out.row_of(name, of)[:4] for name, of in found["compared"].items()]
    k = np.arange(1, 257)
    alike, bound = 0 * k + 1, 1 / k
    weights = bound, alike, alike, alike, alike, 1 / np.maximum(k, 32), bound, alike
    worth = [(k * w).sum() ** 2 / (256 * (k * w ** 2).sum()) * draws
             for w, draws in zip(weights, (1, 1, 1, 1 / 3, 1 / 3, 1, 3, 3), strict=True)]
    assert [row[2] for row in rows] == [f"{int(value + 0.5)}" for value in worth]
    once, third, slower, least, bound_3, alike_3 = list(found["names"])[2:]
    runs = {name: held_out.runs_of(found, name) for name in found["names"]}
    for name, other, words in (
            (least, "as it is", "gains {} nats (95%)"), (least, once, "within {} of counting"),
            (bound_3, "as it is", "then ends {} nats lower (95%)"), (bound_3, once, "(95%), {} below"),
            (alike_3, once, "`masked_ce` itself gains {} by three draws"),
            (alike_3, bound_3, "it is still {} below the bound, half of what it is with one."),
            (third, once, "is {} *worse* than with all"), (slower, once, "at half the learning rate {}: the"),
            (slower, "as it is", "Then it is {} worse than the bound too"),
            (third, "as it is", "(at the full rate not resolved, {})")):
        gap = held_out.compare(runs[name], runs[other])
        assert words.format(f"{abs(gap['above']):.2f} ± {gap['half']:.2f}") in text, words
        assert (abs(gap["above"]) > gap["half"]) == ("resolved" not in words and "within" not in words)
    lead = [held_out.compare(runs[name], runs[other])["above"] for name, other in (
        (once, "as it is"), (alike_3, bound_3))]
    assert 0.45 < lead[1] / lead[0] < 0.55
    on_bound = np.mean(results("real-all.json")["compared"]["mdlm"]["seeds"])
    assert f"[real.md](real.md)'s `mdlm` has {on_bound:.2f} on its bound.)" in text
    early = [f"{min(losses):.1f} to {max(losses):.1f}" for losses in (
        [run["curve"][0]["val_nll"] for name in of for run in runs[name]]
        for of in ((third, slower), ("as it is",), (once, least), (bound_3, alike_3)))]
    assert ("have {} with a third predicted, {} on the bound, {} as k or with k at least 32, {} with three "
            "draws.)").format(*early) in text
    by = results("by-ratio.json")
    bound, alike = (dict(zip(by["masked"], np.mean(seeds, axis=0))) for seeds in by["nats"].values())
    gains = [bound[masked] - alike[masked] for masked in by["masked"]]
    until_half = gains[:by["masked"].index(128) + 1]
    assert f"by {min(until_half):.2f} to {max(until_half):.2f} nats while at most half" in text
    assert sorted(gains[len(until_half):], reverse=True) == gains[len(until_half):]
    assert all(alike[masked] < bound[masked] for masked in by["masked"])

def test_muon():
    seconds, text = results("speed-muon.json")["seconds"], prose("results/speed.md")
    ours, theirs = (1000 * np.median(seconds[name]) for name in ("muon", "pytorch_muon"))
    ratio = np.median(np.divide(seconds["pytorch_muon"], seconds["muon"]))
    assert f"took {ratio:.2f} times as long ({theirs:,.0f} against {ours:.0f} ms;" in text
    found = [results(f"speed-muon-{mode}.json")["seconds"] for mode in ("ar", "mdlm", "aogpt")]
    ratios = {name: [np.median(np.divide(of[name], of["muon"])) for of in found] for name in found[0]}
    for name, *cells, _ in table("results/speed.md", "a step with Muon"):
        assert cells == [f"{ratio:.2f}" for ratio in ratios[name.strip("`")]]
    gains, costs = ([100 * (ratio - 1) for ratio in ratios["muon_separately"]],
                    [100 * (1 / ratio - 1) for ratio in ratios["tuned"]])
    assert ("So **a step with `--preset=laptop` is {:.0f} to {:.0f}% faster there than it was**, and Muon "
            "costs {:.0f} to {:.0f}% more time than AdamW.").format(
                min(gains), max(gains), min(costs), max(costs)) in text

def test_others_code():
    runs, text = [results(f"speed-others-{n}.json")["seconds"] for n in (1, 2, 3)], prose("results/speed.md")

    def ratios(name, mode):
        return [np.median(np.divide(run[name], run[mode])) for run in runs]

    rows = table("results/speed.md", "a step, by turns")
    assert [name.replace("`", "") for name, *_ in rows] == list(runs[0])
    for name, took, *cells in rows:
        name = name.replace("`", "")
        assert took == ", ".join(f"{1000 * np.median(run[name]):,.0f}" for run in runs)
        for mode, cell in zip(("ar", "mdlm"), cells):
            of = "mdlm" if "mdlm" in name else "ar"
            expected = ", ".join(f"{ratio:.2f}" for ratio in ratios(name, mode))
            assert cell == ("" if mode != of else "1" if name == mode else expected)
    pairs = ("nanoGPT", "ar"), ("the paper's ar", "ar"), ("the paper's mdlm", "mdlm")
    alone = [f"{min(of):.1f} to {max(of):.1f}" for of in (ratios(*pair) for pair in pairs)]
    assert ("A step of nanoGPT takes {} times as long as `ar`'s; one of the paper's code {} times as long as "
            "`ar`'s, and {} times as long as `mdlm`'s.").format(*alone) in text
    kept = [f"{min(of):.2f} to {max(of):.2f}" for of in (
        ratios(f"{name}, memory kept", mode) for name, mode in pairs)]
    assert "they then take {}, {} and {} times as long".format(*kept) in text
    gone = []
    for name, mode in pairs:
        took, less, least = ([np.median(run[of]) for run in runs]
                             for of in (name, f"{name}, memory kept", mode))
        gone.append(100 * np.subtract(took, less) / np.subtract(took, least))
    assert ("{:.0f} to {:.0f}% of what nanoGPT takes more is gone, {:.0f} to {:.0f}% and {:.0f} to {:.0f}% "
            "of what the paper's code does").format(
                *(of(share) for share in gone for of in (min, max))) in text
    ratio = ratios("nanoGPT, memory kept", "ar")
    assert (f"at row one's sizes nanoGPT's own code takes {alone[0]} times `ar`'s "
            f"time, if it keeps freed memory {min(ratio):.1f} to {max(ratio):.1f}.") in prose("README.md")
    plain = (results("speed.json")["train"][mode] for mode in ("ar", "mdlm"))
    assert "plain way does ({:.2f} and {:.2f})".format(
        *(of["tok_per_s"] / of["baseline_tok_per_s"] for of in plain)) in text
    rounds = np.concatenate([np.divide(run["the paper's ar"], run["ar"]) for run in runs])
    assert f"(the paper's `ar`: {rounds.min():.1f} to {rounds.max():.1f} times `ar`'s step)" in text

def test_few_stories_of_real_text():
    few, tried = results("real-500.json")["compared"], results("real-tried.json")["runs"]
    helped, text = results("real-helped.json")["compared"], prose("results/real.md")
    for heading, found in ("500 stories, 1,000 steps", few), ("500 stories, helped", helped):
        assert table("results/real.md", heading) == [held_out.row_of(name, of) for name, of in found.items()]
    for name, words in ("mdlm", "stays {} above `ar`'s best"), ("aogpt", "`aogpt`'s {}. `aogpt`"), \
                       ("aogpt, left to right", "left to right, is {} below it"):
        assert words.format(f"{abs(few[name]['above']):.2f} ± {few[name]['error']:.2f}") in text
    rows = table("results/real.md", "tried on 500")
    assert len(rows) == len(tried)
    for mode, dropout, noise, rate, steps, *cells in rows:
        name = f"out/real/{mode}-500-{dropout}-{noise}-{steps.replace(',', '')}"
        run = tried[f"{name}-{rate}-4" if f"{name}-{rate}-4" in tried else f"{name}-4"]
        assert f"--lr={rate} " in run["command"]
        left_to_right = f"{np.mean(run['nats_l2r']):.3f}" if mode == "aogpt" else ""
        assert cells == [f"{run['epochs']:.3g}", f"{min(e['val_nll'] for e in run['curve']):.3f}",
                         f"{np.mean(run['nats']):.3f}", left_to_right]
    words = {3: "three", 7: "seven"}
    tries = {mode: words[len(of)] for mode, of in REMEDIES.items()}
    assert "{ar} settings were tried for it, {mdlm} each for `mdlm` and `aogpt`".format(**tries) in text
    assert tries["mdlm"] == tries["aogpt"]
    [early] = set(few["ar"]["epochs"])
    assert f"at its best after {early:.1f} epochs in all three seeds" in text
    readme = prose("README.md")
    alike, gain = (held_out.compare(*(held_out.runs_of(results("real-500.json"), name) for name in names))
                   for names in (("mdlm by masked_ce", "ar"), ("mdlm by masked_ce", "mdlm")))
    left = f"{alike['above']:.2f} ± {alike['half']:.2f}"
    assert f"`masked_ce` halves `mdlm`'s distance to {left} (95%)" in text
    assert f"it gains {-gain['above']:.2f} ± {gain['half']:.2f} nats" in prose("results/weights.md")
    assert 0.4 < -gain["above"] / few["mdlm"]["above"] < 0.6 and alike["above"] > alike["half"]
    lowest = helped["mdlm by masked_ce"]
    assert (f"`ar`, best after {early:.0f} epochs, is {alike['above']:.2f} nats below the best bound "
            f"(`masked_ce`), {lowest['above']:.2f} if each is helped (noise: `ar` alone)." in readme)
    files, gain = [results(f"real-{name}.json") for name in ("helped", "500")], {}
    for name, key in (("ar", "nats"), ("aogpt", "nats_l2r"), ("mdlm by masked_ce", "nats"), ("mdlm", "nats"),
                      ("aogpt", "nats")):
        of = held_out.compare(*(held_out.runs_of(found, name) for found in files), key, key)
        gain[name, key] = f"{-of['above']:.2f} ± {of['half']:.2f}"
        assert (-of["above"] > of["half"]) == ((name, key) in list(gain)[:3])
    assert ("surely gain ({}, {} and {}; the bounds of `mdlm` trained on its own and of `aogpt` {} and "
            "{}; all 95%)").format(*gain.values()) in text
    beside = [held_out.compare(held_out.runs_of(files[0], "mdlm by masked_ce"), held_out.runs_of(*of))
              for of in ((files[0], "mdlm"), (files[1], "ar"))]
    on_bound, on_plain = (f"{of['above']:.2f} ± {of['half']:.2f}" for of in beside)
    assert (f"masked_ce`'s**, {on_bound.removeprefix('-')} (95%) below that of `mdlm` trained on it: "
            f"{lowest['above']:.2f} ± {lowest['error']:.2f} above the `ar` that was helped, and as low as "
            f"the one without ({on_plain.replace('-', '−')}, 95%).") in text
    assert f"dropout and twice the steps {on_bound.removeprefix('-')}" in prose("results/weights.md")
    assert min(of["above"] for name, of in helped.items() if name in ("mdlm", "aogpt")) > lowest["above"]
    assert all(of["mdlm"]["above"] < of["aogpt"]["above"] for of in (few, helped))
    assert all(few[mode]["above"] > few[mode]["half"] for mode in ("mdlm", "aogpt"))
    def above(name):        # ar's best, with help
        return f"{helped[name]['above']:.2f} ± {helped[name]['error']:.2f} above"
    mean = {name: np.mean(of["seeds"]) for name, of in helped.items()}
    plain = {name: np.mean(of["seeds"]) for name, of in few.items()}
    assert f"`mdlm`'s stays {above('mdlm')} it, `aogpt`'s {above('aogpt').removesuffix(' above')}" in text
    over_plain = (f"{mean[mode] - plain['ar']:.2f}" for mode in ("mdlm", "aogpt"))
    assert f"They stay {' and '.join(over_plain)} above even the `ar`" in text
    assert f"comes {plain['ar'] - mean['aogpt, left to right']:.2f} below the `ar` without" in text
    assert f"but stays {above('aogpt, left to right')} the `ar` that was helped" in text
    assert all(of["above"] > of["half"] for name, of in helped.items() if name != "ar")
    long = {epochs: of["val_nll"] for of in tried["out/real/mdlm-500-0-0-4000-4"]["curve"]
            if (epochs := of["steps"] * 16 / 500) in (64, 128)}
    assert f"from {long[64]:.3f} at the 64th to {long[128]:.3f} on the stories" in text
    lucky, seeds = np.mean(tried["out/real/mdlm-500-0.3-0-2000-4"]["nats"]), sorted(helped["mdlm"]["seeds"])
    assert f"{lucky:.3f} with dropout of 0.3, where the three seeds above have {seeds[0]:.3f} to " \
           f"{seeds[-1]:.3f}, hardly less than without ({plain['mdlm']:.3f})" in text

def test_plateau():
    page, done = prose("results/plateau.md"), results("plateau.json")["trials"]

    def runs(added, **other):
        return [done[plateau.Probe(added, seed=seed, **other).name()] for seed in plateau.SEEDS]

    def bounds(added, **other):
        return np.array([run["curve"][-1]["val_nll"] for run in runs(added, **other)])

    def below(added, **other):
        nothing = {name: value for name, value in other.items() if name != "size"}
        gain = bounds("nothing", **nothing) - bounds(added, **other)
        return f"{np.mean(gain):.2f} ± {np.std(gain, ddof=1):.2f}"

    def seeds(added, **other):
        return ", ".join(f"{nats:.2f}" for nats in bounds(added, **other))

    def ends(added, **other):
        steps = map(plateau.ended, runs(added, **other))
        after = f"> {other.get('steps', 200)}"
        return ", ".join(after if step == np.inf else f"{step:.0f}" for step in steps)

    def mean(added):
        return f"{np.mean(bounds('nothing') - bounds(added)):.2f}"

    def without_mean_key(added):
        return np.mean([run["without_mean_key"] for run in runs(added)] - bounds(added))

    for added, *cells in table("results/plateau.md", "added"):
        near = np.mean([run["curve"][-1]["near"] for run in runs(added)])
        assert cells == [seeds(added), "" if added == "nothing" else below(added), ends(added), f"{near:.0f}",
                         f"{without_mean_key(added):.2f}"]
    common = "c to all embeddings"
    for size, *cells in table("results/plateau.md", "norm of c"):
        probe = (common, dict(size=float(size))) if float(size) else ("nothing", {})
        assert cells == [seeds(probe[0], **probe[1]), below(common, **probe[1]) if probe[1] else "",
                         ends(probe[0], **probe[1])]
    gains, last = [], {}
    for size, batch, *cells in table("results/plateau.md", "window"):
        of = dict(block_size=int(size), batch_size=int(batch), windows="random")
        assert cells == [seeds("nothing", **of), ends("nothing", **of), seeds(common, **of),
                         ends(common, **of), below(common, **of)]
        gains.append(np.mean(bounds("nothing", **of) - bounds(common, **of)))
        last[size, batch] = [plateau.ended(run) for run in runs("nothing", **of)]
    settings = {"all as above": {}, "AdamW, 0.004": dict(optimizer="adamw", lr=4e-3, steps=400),
                "0.004": dict(lr=4e-3, steps=400), "0.016": dict(lr=1.6e-2), "warm-up of 20": dict(warmup=20),
                "the paper's init, untied head": dict(init="paper", tie_head=False, steps=600),
                "no target embedding": dict(target_embedding=False), "`aogpt`": dict(mode="aogpt"),
                "`ar`": dict(mode="ar")}
    rows = table("results/plateau.md", "what differs")
    assert [row[0] for row in rows] == list(settings)
    for (name, *cells), of in zip(rows, settings.values()):
        assert cells == [str(of.get("steps", 200)), seeds("nothing", **of), ends("nothing", **of),
                         seeds(common, **of), ends(common, **of), below(common, **of)]

    def span(added, **of):
        steps = [plateau.ended(run) for run in runs(added, **of)]
        return f"{min(steps):.0f} to {max(steps):.0f}"

    start, untold = settings["the paper's init, untied head"], settings["no target embedding"]
    sooner = np.subtract(*([plateau.ended(run) for run in runs("nothing", **of)]
                           for of in ({}, settings["warm-up of 20"])))
    for words in (f"the same rate leaves it at step {span('nothing', **settings['0.004'])}.",
                  f"brings all three forward by {min(sooner):.0f} to {max(sooner):.0f}.",
                  f"it lasts for {span('nothing', **start)} steps; what c changes is not resolved** "
                  f"({below(common, **start)})", f"ends at {span('nothing', **untold)}, and c gives no less "
                  f"on average ({below(common, **untold)})", f"{span('nothing', mode='aogpt')} steps, with c "
                  f"{span(common, mode='aogpt')}, against 26, which"):
        assert words in page

    def ended(added, **of):
        return np.array([plateau.ended(run) for run in runs(added, **of)])

    assert (ended(common, **start) < ended("nothing", **start)).sum() == 2          # "two seeds end sooner"
    assert (ended("nothing", mode="aogpt") < ended("nothing")).sum() == 2           # "shorter for two seeds"
    short = [f"{min(steps):.0f} to {max(steps):.0f}" for steps in list(last.values())[:3]]
    assert "at step {} with windows of 32, at {} with 64, {} with 128;".format(*short) in page
    most, third = sorted(last["256", "16"])[1:], last["256", "16"][2]
    assert f"with 256 at {most[0]:.0f} or after the last of the 200" in page and most[1] == np.inf
    assert f"third seed again at {third:.0f}." in page
    assert "from {:.2f} with 32 to {:.2f} with 128 ({:.2f} with 256 is".format(gains[0], *gains[2:4]) in page
    assert [step > max(last["128", "16"]) for step in last["256", "24"]] == [True, True, False]
    fast = "plain bias of k of layer 1, 72 times as fast"
    learned, begins = (f"c's bias, {part}, k of layer 1" for part in ("what is learned", "as it begins"))
    assert f"({mean('c before attention of layer 1')} and {mean('c to all embeddings')} nats)" in page
    assert f"gives most of all, {mean(fast)} nats" in page and max(plateau.ADDED, key=mean) == fast
    assert all((bounds("nothing") < bounds(fast.replace(" k ", f" {part} "))).all() for part in "qv")
    spread = np.std(bounds("nothing") - bounds(begins), ddof=1)
    first = f"{mean(begins)} ± {spread:.2f}"
    assert f"is learned gives {mean(learned)}, the part it begins with {first}." in page
    assert f"as LayerNorm has them, give {mean('plain biases')} and {mean('biases of norms')}." in page
    loses = (f"{without_mean_key(added):.1f}" for added in (fast, "c to all embeddings", "nothing"))
    assert "with the fast bias loses {} nats, the one with c {}, the plain one {}.".format(*loses) in page
    first, *_, last = runs("nothing")
    near = {entry["step"]: entry["near"] for entry in first["curve"]}
    assert (f"it is {near[50]:.1f} times even attention's at step 50, {near[100]:.1f} at 100, "
            f"{near[150]:.0f} at 150, {near[200]:.0f} at 200") in page
    longer = [done[f"{added}-steps=1500-final_lr=0.0"]["curve"][-1]["val_nll"] for added in (
        "c_to_all_embeddings", "plain_bias_of_k_of_layer_1,_72_times_as_fast",
        "c_to_real_tokens,_-c_to_[MASK]", "nothing", "nothing-seed=2")]
    assert ("c is at {:.2f}, the fast bias of k at {:.2f}, c with −c on [MASK] at {:.2f}, "
            "nothing at {:.2f} and, with a second seed, {:.2f}:").format(*longer) in page
    assert f"each token is, {first['unigram']:.2f} nats" in page
    assert f"ends at step {plateau.ended(last):.0f} without help, as with c" in page

def nats_of_blanks(name, length):
    """Of each seed, on real text. A mode, or mdlm by masked_ce."""
    mode, *other = name.split(" by ")
    found = results("real-infill-masked-ce.json" if other else "real-infill.json")
    runs = [run for run in found["runs"].values() if run["mode"] == mode]
    assert len(runs) == 3
    return [run["blanks"][length]["nats"] for run in runs]

def test_blanks_of_real_text():
    rows = table("results/sampling.md", "tokens hidden")
    names, lengths = ("ar", "mdlm", "mdlm by masked_ce", "aogpt"), ("1", "2", "4", "8", "16", "32")
    assert [row[0].replace("`", "") for row in rows] == [*names]
    for name, *cells in rows:
        assert cells == [spread(nats_of_blanks(name.replace("`", ""), n)) for n in lengths]
    one, two = ([np.mean(nats_of_blanks("ar", n)) - np.mean(nats_of_blanks(name, n)) for name in names[1:]]
                for n in "12")
    text = prose("results/sampling.md")
    assert (f"it is {one[2]:.2f} nats better" in text and f"leads `ar` by {one[0]:.2f} there, and its bound "
            f"is level with `ar` at two; trained by [`masked_ce`](weights.md) it leads by {one[1]:.2f} and "
            f"{two[1]:.2f}." in text and abs(two[0]) < 0.1)
    assert all(max(nats_of_blanks("aogpt", n)) < min(nats_of_blanks(name, n)) for n in lengths
               for name in names[1:3])         # trails at every length

def test_blanks_after_longer_training():
    text, found = prose("results/sampling.md"), results("real-later.json")
    files = "real-infill-later.json", "real-infill-later-2.json"
    seeds = [[run["blanks"] for run in results(file)["runs"].values()] for file in files]
    lengths = list(seeds[0][0])
    each = [[", ".join(f"{of[i][length]['nats']:.2f}" for of in seeds) for length in lengths] for i in (0, 1)]
    apart = [["{above_first:.2f} ± {above_first_se:.2f}".format(**aogpt[length]).replace("-", "−")
              for length in lengths] for _, aogpt in seeds]
    assert [cells for _, *cells in table("results/sampling.md", "hidden, after 4,500 steps")] == each + apart
    eight, sixteen = (np.mean([aogpt[length]["nats"] for _, aogpt in seeds]) for length in ("8", "16"))
    assert f"below, `aogpt` has {eight:.2f} for eight tokens and {sixteen:.2f} for 16." in text
    first, second = (of[0].removeprefix("−") for of in apart)
    assert f"for one token `aogpt` is lower by {first} and {second} nats (two seeds, the same" in text
    for _, aogpt in seeds:
        for length, blank in aogpt.items():     # level for two and four, "from eight tokens on `aogpt` leads"
            in_errors = blank["above_first"] / blank["above_first_se"]
            assert abs(in_errors) < 2 if length in ("2", "4") else in_errors < (-1 if length == "1" else -3)
    apart = held_out.compare(*(held_out.runs_of(found, name) for name in ("aogpt", "mdlm by masked_ce")))
    ends = [np.mean(of["seeds"]) for of in found["compared"].values()]
    lower = f"{apart['above']:.2f} ± {apart['error']:.2f} lower"
    assert f"is by then {lower} ({ends[0]:.2f} against {ends[1]:.2f}," in text
    assert "`mdlm` by `masked_ce` has {:.2f}, `aogpt` {:.2f} and from left to right {:.2f} ".format(
        *ends) in prose("results/real.md")

def blanks_after_44_epochs():
    """{name: what either seed has}"""
    def of(name):
        return [run["blanks"] for run in results(f"real-infill-longer-{name}.json")["runs"].values()]

    (mdlm, aogpt), (bound, the_same) = (zip(of(f"2{how}"), of(f"3{how}")) for how in ("-in-order", ""))
    assert [{n: run["nats"] for n, run in blanks.items()} for blanks in aogpt] == [
        {n: run["nats"] for n, run in blanks.items()} for blanks in the_same]
    return {"mdlm, left to right": mdlm, "mdlm, its bound": bound, "aogpt": aogpt, "ar": of("ar")}

def test_blanks_after_44_epochs():
    found, text = blanks_after_44_epochs(), prose("results/sampling.md")
    mdlm, bound, aogpt, ar = found.values()
    lengths = list(ar[0])
    pairs = [[f"{of[n]['above_first']:.2f} ± {of[n]['above_first_se']:.2f}".replace("-0.00", "0.00")
              for n in lengths] for of in aogpt]
    assert [cells for _, *cells in table("results/sampling.md", "hidden, after 15,000 steps")] == [
        *([", ".join(f"{run[n]['nats']:.2f}" for run in of) for n in lengths] for of in found.values()),
        *pairs]
    apart = {n: [f"{of[n]['above_first']:.2f}" for of in aogpt] for n in lengths}
    assert ("better than `aogpt`**: by {} and {} nats for one token (two seeds), by {} and {} for two, {} "
            "and {} for four, {} and {} for eight and {} and {} for 16; at 32 they are level").format(
                *(cells[0] for cells in pairs), *sum((apart[n] for n in lengths[1:5]), [])) in text
    for n in lengths:
        errors = [of[n]["above_first"] / of[n]["above_first_se"] for of in aogpt]
        assert min(errors) > 2 if n != "32" else max(map(abs, errors)) < 1
        ahead = [left[n]["nats"] - both[n]["nats"] for left, both in zip(ar, mdlm)]
        assert min(ahead) > 0 if n != "32" else max(ahead) < 0
    slack, seems = ([of["8"]["nats"] - other["8"]["nats"] for of, other in zip(*two)]
                    for two in ((bound, mdlm), (bound, aogpt)))
    assert "orders {:.2f} and {:.2f} nats at eight tokens were slack".format(*slack) in text
    assert min(seems) > 0       # "by the bound alone aogpt would still seem to lead there"

def test_what_differs_from_the_paper():
    text = prose("results/paper.md")
    first = {name: run["curve"][0]["val_nll"] for name, run in results("first-loss.json")["runs"].items()}
    assert f"at a loss of {first['ar-paper']:.0f} nats per token, its `mdlm` " \
        f"at {first['mdlm-paper']:.1f}; with our weights" in text
    assert f"with our weights they begin at {first['ar-scaled']:.1f} and {first['mdlm-scaled']:.1f}" in text
    toy, real = ([f"{ratio:.1f}" for ratio in row["ratios"]] for row in results("estimator.json")["results"])
    assert f"has {real[0]} times the variance of ours on real text" in text
    assert f"{real[1]} times with independent ones) and {toy[0]} (pairs) or {toy[1]} times on " \
        "the toy" in text

def test_what_readme_finds():
    text = prose("README.md")
    drafts = {M: of_steps("aogpt", "ancestral", steps=48, draft=M) for M in (None, 1, 48)}
    good = {M: percent([row["grammatical"] for row in rows]) for M, rows in drafts.items()}
    real = results("real-speculative.json")["results"][REAL]
    [tokens] = [row["tokens_per_pass"] for row in real["law"] if row["draft"] == 16]
    [fast] = [row["times_faster"] for row in real["speed"] if (row["stories"], row["draft"]) == (1, 16)]
    speed = np.mean([row["tokens_per_pass"] for row in drafts[48]])
    assert f"**Speculative decoding: {speed:.1f} tokens a pass" in text
    assert f"{good[48]} of its stories are grammatical, as one by one ({good[1]})" in text
    ordered = {order: next(iter(results(f"real-speculative-{order}.json")["results"].values()))
               for order in ("random", "left_to_right")}
    cells = [["{tokens_per_pass:.2f} ({drafts_kept:.0%})".format(**row) for row in found["law"]]
             for found in ordered.values()]
    page = prose("results/sampling.md")
    assert [row[1:] for row in table("results/sampling.md", "4,500 steps, tokens a pass")] == cells
    assert max(row["times_faster"] for row in ordered["left_to_right"]["speed"] if row["draft"]) < 1
    [longer] = [row["tokens_per_pass"] for row in ordered["random"]["law"] if row["draft"] == 16]
    assert f"1,500 steps above, {longer:.2f} tokens a pass against {tokens:.2f} with 16:" in page
    later = results("real-later.json")["compared"]
    assert "of this model {:.2f} nats per token, a bound, against {:.2f}.".format(
        *(later[name]["seeds"][1] for name in ("aogpt", "aogpt, left to right"))) in page
    [left] = [row["tokens_per_pass"] for row in ordered["left_to_right"]["law"] if row["draft"] == 16]
    assert (f"On real text, drafts of 16 give {longer:.1f} a pass (left to right {left:.1f}), one story over "
            "twice as fast") in text
    assert fast > 2 and all(row["times_faster"] > 2 for row in ordered["random"]["speed"]
                            if row["draft"] == 16)

    def share(mode, sampler, steps, perfect=False):
        rows = of_steps(mode, sampler, perfect, steps=steps, draft=None)
        return f"{100 * np.mean([row['grammatical'] for row in rows]):.1f}%"

    for mode, sampler in (("mdlm", "first_hitting"), ("aogpt", "ancestral")):
        assert f"with `{mode}` from {share(mode, sampler, 48)} to {share(mode, sampler, 24)}" in text
    assert f"falls from 100% to {share('mdlm', 'first_hitting', 24, True)}, with" in text
    rules = {(row["network"], row["rule"], row["per_step"]): row
             for row in results("toy-planners.json")["rules"]}
    confidence = rules["exact", "confidence", 1]
    assert f"stories {np.exp(-confidence['surprise']):.0f} times likelier (geometric mean)" in text
    shares = (float(share("mdlm", sampler, 48).strip("%")) for sampler in ("ancestral", "first_hitting"))
    assert ("({:.0f}% of the toy's stories are grammatical); default `first_hitting`: equally many ({:.0f}%)"
            ).format(*shares) in text

    few = {row[0]: row[3] for row in table("results/few-stories.md", "trained on few") if row[1] == "1,000"}
    plain, dropped = few["aogpt, left to right"], few["aogpt, dropout 0.3, left to right"]
    assert (f"at best {few['ar']} (dropout, noise: {few['ar, dropout 0.3, noise 0.3']}); `mdlm`'s bound "
            f"{few['mdlm']}, `aogpt` left to right {plain} (dropout: {dropped});") in text

    blanks = {(name, "1"): nats_of_blanks(name, "1") for name in ("ar", "mdlm", "aogpt")}
    one = np.mean(blanks["ar", "1"]) - np.mean(blanks["aogpt", "1"])
    assert (f"is {one:.1f} nats below `ar`**, which uses the left alone, for one hidden token of real text "
            f"after 4 epochs (`aogpt` {spread(blanks['aogpt', '1'])}, `mdlm` {spread(blanks['mdlm', '1'])}, "
            f"`ar` {spread(blanks['ar', '1'])})") in text
    mdlm, _, aogpt, ar = blanks_after_44_epochs().values()
    one, eight = ([", ".join(f"{run[n]['nats']:.2f}" for run in of) for of in (mdlm, aogpt, ar)]
                  for n in ("1", "8"))
    assert (f"one {one[0]} (two seeds; `aogpt` {one[1]}), eight {eight[0]} ({eight[1]}; "
            f"`ar` {eight[2]})") in text
    rows = table("README.md", "parameters, epochs")
    columns = [*map(of_sizes, ("ar", "mdlm", "mdlm by masked_ce", "aogpt", "aogpt, left to right"))]
    assert [[re.sub(r" \(.+\)", "", cell) for cell in cells] for _, *cells in rows] == [
        [*map(spread, of)] for of in zip(*columns)]
    assert ["28M" in what for what, *_ in rows] == [False, True] * 2
    assert {len(seeds) for of in columns for seeds in of} == {3}
    fair = diversity_columns()["on fair terms"]
    assert ("as diverse as real ones (distinct-4 {:.2f} against {:.2f}), `mdlm`'s more ({:.2f})".format(
        *(fair[name]["distinct-4"][0] for name in ("ar", "real text", "mdlm")))) in text
    judged = [[fair[name][f"nats/token, judge out/diversity/judge-{judge}"][0] for judge in (1, 2)]
              for name in ("mdlm", "ar", "real text")]
    assert all(f"{one:.1f}" == f"{two:.1f}" for one, two in judged)
    assert ("two judges give its {:.1f} nats per token, `ar`'s {:.1f}, real text {:.1f}".format(
        *(one for one, _ in judged))) in text

def of_stories(name, column, metric, how):
    """A cell of diversity.md's tables: over seeds with their standard deviation; real text has no seeds."""
    value, error = column[metric]
    return f"{value:{how}}" + ("" if name.startswith("real text") else f" ± {error:{how}}")

SHOWN = {"distinct-1": ".3f", "distinct-2": ".3f", "distinct-3": ".3f", "distinct-4": ".3f",
         "self-BLEU": ".3f", "vocabulary used": ",.0f", "distinct first words": ".3f",
         "distinct 5-word openings": ".3f", "most common first word": ".1%", "entropy of words": ".2f",
         "nats/token, judge out/diversity/judge-1": ".2f", "nats/token, judge out/diversity/judge-2": ".2f",
         "repeated 4-grams": ".2%", "longest copied n-gram": ".1f", "copied stories": ".1%"}

def diversity_columns():
    """Of the two tables: {head: column}."""
    ours, ar, mdlm = (results(f"diversity{of}.json")["columns"] for of in ("", "-paper-ar", "-paper-mdlm"))
    paper = {"ar by the paper": ar["ar by the paper"], "real text, story starts": ar["real text"],
             "mdlm by the paper": mdlm["mdlm by the paper"],
             "the same, no penalty": mdlm["mdlm by the paper, no penalty"],
             "real text, anywhere": mdlm["real text"]}
    return {"on fair terms": ours, "the paper's way": paper}

def test_as_many_stories_as_the_paper():
    """Or as large a model, or as many steps."""
    columns = [results(f"diversity-{of}.json")["columns"]
               for of in ("paper-mdlm", "grown", "thousand-mdlm", "paper-ar", "thousand-ar")]
    mdlm, grown, more_mdlm, ar, more_ar = columns
    rows = {"`mdlm`": mdlm["mdlm by the paper"], **{f"`mdlm`, {name}": of for name, of in grown.items()
                                                    if name != "real text"},
            "real text, anywhere": mdlm["real text"],
            "`mdlm`, 1,000 stories": more_mdlm["mdlm, 1,000 stories"],
            "real text, anywhere, 1,000": more_mdlm["real text"], "the paper's `mdlm`": None,
            "`ar`": ar["ar by the paper"], "real text, story starts": ar["real text"],
            "`ar`, 1,000 stories": more_ar["ar, 1,000 stories"],
            "real text, story starts, 1,000": more_ar["real text"], "the paper's `ar`": None}
    metrics = "distinct-1", "distinct-2", "distinct-3", "distinct-4", "self-BLEU"
    for (shown, *cells), (name, column) in zip(table("results/diversity.md", "how many, how large"),
                                               rows.items(), strict=True):
        assert shown == name
        assert column is None or cells == [of_stories(name, column, metric, ".3f") for metric in metrics]
    text, judge = prose("results/diversity.md"), "nats/token, judge out/diversity/judge-1"
    first, wide, long, real = (f"{column[judge][0]:.2f}" for column in (
        mdlm["mdlm by the paper"], grown["twice as wide"], grown["three times the steps"], mdlm["real text"]))
    assert f"nats from {first} to {long}, towards real text's {real}; twice the width" in text
    assert f"and {wide} nats." in text
    fourth = (of_stories("", column, "distinct-4", ".3f") for column in (
        mdlm["mdlm by the paper"], grown["three times the steps"], grown["twice as wide"]))
    assert "(distinct-4 the other way round: {}, longer {}, wider {})".format(*fourth) in text

def test_diversity():
    for head, columns in diversity_columns().items():
        rows = table("results/diversity.md", head)
        assert rows == [[metric.replace("nats/token, judge out/diversity/judge-", "nats per token, judge "),
                         *(of_stories(name, column, metric, how) for name, column in columns.items())]
                        for metric, how in SHOWN.items()]
    text, (fair, paper) = prose("results/diversity.md"), diversity_columns().values()

    def of(name, metric, columns=fair):
        return columns[name][metric][0]

    judge = "nats/token, judge out/diversity/judge-1"
    assert "distinct-4 is {:.2f} and {:.2f} where real text has {:.2f}".format(
        *(of(name, "distinct-4") for name in ("mdlm", "aogpt", "real text"))) in text
    forwards = "aogpt, left to right"
    assert f"has {of(forwards, judge):.1f} nats and a distinct-4 of {of(forwards, 'distinct-4'):.2f}." in text
    first = [[column["distinct first words"][0] for column in (
        paper[f"{mode} by the paper"], more[f"{mode}, 1,000 stories"], paper[real], more["real text"])]
        for mode, real in (("ar", "real text, story starts"), ("mdlm", "real text, anywhere"))
        for more in [results(f"diversity-thousand-{mode}.json")["columns"]]]
    (ar, ar_more, *starts), (mdlm, mdlm_more, *anywhere) = first
    assert (f"has {ar:.3f} distinct first words a sample and `mdlm` {mdlm:.2f}; with as many stories as the "
            f"paper, 1,000, {ar_more:.3f} and {mdlm_more:.2f} (the paper: 0.002 and 0.361). Real text has "
            f"{starts[0]:.2f} at the starts of stories and {anywhere[0]:.2f} anywhere (of 1,000: "
            f"{starts[1]:.2f} and {anywhere[1]:.2f})") in text
    beside = [[of(name, "distinct-4", paper) for name in pair] for pair in (
        ("ar by the paper", "real text, story starts"), ("mdlm by the paper", "real text, anywhere"))]
    assert ("`ar`'s distinct-4 is {:.2f} where real text has {:.2f}, `mdlm`'s {:.2f} where it has {:.2f}."
            .format(*sum(beside, []))) in text
    assert "(distinct-1 {1:.3f} against {0:.3f};".format(
        *(of(f"{mode} by the paper", "distinct-1", paper) for mode in ("ar", "mdlm"))) in text
    assert "without it distinct-4 is {:.2f}, distinct-1 {:.3f}.".format(
        *(of("the same, no penalty", metric, paper) for metric in ("distinct-4", "distinct-1"))) in text
    copied = {name: column["longest copied n-gram"][0] for name, column in fair.items()}
    assert sorted(copied, key=copied.get)[-2:] == ["real text", "mdlm, confidence"]
    assert not any(column["copied stories"][0] for column in [*fair.values(), *paper.values()])

def test_frontier():
    curves, text = results("diversity-frontier.json")["curves"], prose("results/diversity.md")
    real, judge = curves.pop("real text"), "nats/token, judge out/diversity/judge-1"
    line = {name: np.array([(m["distinct-4"][0], m[judge][0]) for m in points.values()])
            for name, points in curves.items()}
    ar, mdlm, aogpt, forwards = line.values()
    at = {name: np.interp(real["distinct-4"][0], *points.T) for name, points in line.items()}
    assert list(at) == [f"out/diversity/{name}" for name in ("ar-1", "mdlm-1", "aogpt-1",
                                                            "aogpt-1:left_to_right")]
    assert ("distinct-4 is real text's {4:.2f}, on straight lines between the points, the judge gives `ar` "
            "{0:.2f} nats per token, `aogpt` from left to right {3:.2f}, `aogpt` in random order {2:.2f} and "
            "`mdlm` {1:.2f}; real text has {5:.2f}.").format(*at.values(), real["distinct-4"][0],
                                                             real[judge][0]) in text
    for other in (mdlm, aogpt, forwards):       # where ar has both more and less distinct stories
        inside = [(x, y) for x, y in other if ar[0, 0] <= x <= ar[-1, 0]]
        assert len(inside) > 2 and all(np.interp(x, *ar.T) < y for x, y in inside)
    for x, y in forwards[:-1]:
        if x >= aogpt[0, 0]:
            assert y - np.interp(x, *ar.T) < np.interp(x, *aogpt.T) - y
    less = [np.interp(x, *aogpt.T) - y for x, y in forwards[-3:]]       # temperatures of 0.9, 1 and 1.1
    assert "`aogpt` has {:.2f}, {:.2f} and {:.2f} nats less than in random order".format(*less) in text
    hot = [points["1.2"]["grammatical"][0] for name, points in results("toy-frontier.json")["curves"].items()
           if name != "real text"]
    assert ("at 1.2 {1:.0%} and {2:.0%} of their stories are grammatical, of `ar`'s {0:.0%}."
            ).format(*hot) in text

def test_readme_shows_the_code_as_it_is():
    text, code = (Path(ROOT, name).read_text("utf-8") for name in ("README.md", "model.py"))
    losses = inspect.getsource(group_losses).splitlines()
    excerpt = re.search(r"```python\n(logits = .+?)```", text, re.DOTALL)[1]
    kept = [line.strip() for line in losses if line.strip() in excerpt.splitlines()]
    assert kept == excerpt.splitlines()     # the branch of compiled code is left out
    lines = [line for line in text.splitlines() if re.match(r" +(attention |ar  |mdlm  |aogpt )", line)]
    assert len(lines) == 4 and all(line.strip() in code for line in lines)
    files = [Path(ROOT, name).read_text("utf-8") for name in ("model.py", "train.py", "sample.py")]
    assert abs(sum(len(file.splitlines()) for file in files) - 1250) < 25 and "1,250 lines" in text

@pytest.mark.parametrize("page, sentence, files", [
    ("README.md", "two Xeon cores with AMX, or an H100; vocabulary", "speed, speed-paper, speed-gpu"),
    ("results/speed.md", "Two cores of an Intel Xeon with AMX, bfloat16, vocabulary 50,257 (speed.json, "
                         "speed-paper.json)", "speed, speed-paper, scaling"),
    ("results/speed.md", "On two cores of an Intel Xeon with AMX a large product",
     "step-parts, speed-tried-ar, speed-tried-mdlm, speed-cut-laptop-ar"),
    ("results/speed.md", "Two cores of an Intel Xeon with AMX, bfloat16; float32",
     "first-command, first-step"),
    ("results/speed.md", "float32: of an AMD EPYC without instructions for bfloat16",
     "first-command-float32, first-step-float32"),
    ("results/speed.md", "an AMD EPYC with bfloat16, and in float32 one without (contention.json, "
                         "contention-float32.json)",
     "contention, contention-float32, contention-idle-float32"),
    ("results/speed.md", "A Xeon with AMX loses 4%", "contention-idle"),
    ("results/speed.md", "denormals.json; one core of an Intel Xeon", "denormals"),
    ("results/speed.md", "two cores of an AMD EPYC without AVX-512, float32", "speed-muon"),
    ("results/speed.md", "by turns, two cores of an Intel Xeon with AMX (medians of 6 ratios",
     "speed-muon-ar, speed-muon-mdlm, speed-muon-aogpt"),
    ("results/speed.md", "Two cores of an Intel Xeon with AMX; by turns, medians of six rounds",
     "speed-others-1, speed-others-2, speed-others-3"),
    ("results/speed.md", "two cores of an AMD EPYC, float32, median of 6 ratios",
     "speed-slots-toy, speed-slots-laptop, speed-loss-small-ar, speed-loss-small-mdlm, speed-loss-paper-ar"),
    ("results/sampling.md", "real-speculative.json, one core of an Intel Xeon", "real-speculative"),
    ("results/sampling.md", "speculative.json, two cores of an AMD EPYC", "speculative"),
    ("results/sampling.md", "124M models on two cores of an AMD EPYC", "sampling-cost, sampling-cost-16"),
    ("results/trust.md", "two cores of an Intel Xeon (`python -m experiments.try_load", "load")])
def test_machines(page, sentence, files):
    """What a page says of the machine is what the files say."""
    assert sentence in prose(page)
    maker = "Intel" if "Xeon" in sentence else "AMD"
    assert all(maker in results(f"{file}.json")["machine"] for file in files.split(", "))

def tables_of(page):
    """Every table of a page that a command wrote: its rows, without the head."""
    found = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", Path(ROOT, page).read_text("utf-8"), re.MULTILINE)
    return [*map(cells_of, found)]

@pytest.mark.parametrize("page, file", [
    *((name, name) for name in ("real-500", "real-all", "real-helped", "real-laptop", "real-longer",
                                "real-bigger", "confounds-ar", "confounds-mdlm", "confounds-aogpt")),
    ("weights-table", "weights")])
def test_pages_of_held_out(page, file):
    compared = results(f"{file}.json")["compared"]
    assert tables_of(f"results/{page}.md") == [[held_out.row_of(*of) for of in compared.items()]]

def test_pages_of_other_commands():
    for name in "toy-orders", "real-orders":
        runs = results(f"{name}.json")["runs"]
        assert tables_of(f"results/{name}.md") == [
            orders.table_of(runs, key)[1:] for key in ("orders", "mixture", "spread")
            if key in next(iter(runs.values()))[0]]                     # toy-orders.json is older than spread
    done = results("plateau.json")["trials"]
    assert tables_of("results/plateau-tables.md") == [
        plateau.table_of(part, done)[1:] for part in plateau.PARTS]
    kinds = few_stories.kinds_of(results("few-stories.json")["trials"])
    assert tables_of("results/few-stories-tables.md") == [
        few_stories.table_of(*kind)[1:] for kind in kinds.items()]
    found = results("by-ratio.json")
    assert tables_of("results/by-ratio.md") == [
        by_ratio.table_of(found["nats"], found["masked"], found["block_size"])[1:]]
