"""Wrong calls of every command, as real processes: exit code 2, one line that names the culprit, and no file
touched."""
import pytest

from conftest import TINY, run

BAD = [
    ("train.py", ["--mode=mdml"], ["--mode=mdml", "mdlm"]),
    ("train.py", ["--mod=ar"], ["unknown argument --mod", "--mode"]),
    ("train.py", ["--preset=lap"], ["laptop"]),
    ("train.py", ["--data=none"], ["no data set at data/none/meta.json", "prepare_data.py"]),
    ("train.py", ["--data=tt"], ["did you mean t"]),
    ("train.py", ["--mode=ar", "--time_embedding=add", *TINY], ["time_embedding is add", "mdlm"]),
    ("train.py", [*TINY, "--seed=-1"], ["--seed=-1", "at least 0"]),
    ("train.py", [*TINY, "--beta2=1.5"], ["--beta2=1.5", "at most 0.99999"]),
    ("train.py", [*TINY, "--n_embd=100", "--n_head=12"], ["n_embd 100", "n_head 12", "n_embd=96"]),
    ("train.py", [*TINY, "--block_size=100000"], ["block_size 100000", "smaller"]),
    ("train.py", [*TINY, "--vocab_size=70"], ["vocab_size=70", "leave it out"]),
    ("train.py", [*TINY, "--mode=mdlm", "--batch_size=7"], ["batch_size=7", "even"]),
    ("train.py", [*TINY, "--batch_size=8", "--grad_accum=3"], ["grad_accum=3", "whole"]),
    ("train.py", [*TINY, "--max_steps=0"], ["max_steps=0", "at least 1"]),
    ("train.py", [*TINY, "--max_steps=ten"], ["max_steps=ten", "whole number"]),
    ("train.py", [*TINY, "--lr=nan"], ["lr=nan", "finite"]),
    ("train.py", [*TINY, "--resume=maybe"], ["true or false"]),
    ("train.py", [*TINY, "--device=cuda:77"], ["cuda:77", "not usable"]),
    ("train.py", [*TINY, "--out_dir=out/ar"], ["there is a run already", "--resume", "--out_dir"]),
    ("train.py", [*TINY, "--out_dir=out/bad"], ["out/bad/best.pt", "there is a run already", "remove it"]),
    ("train.py", [*TINY, "--out_dir=out/new", "--resume"], ["no checkpoint at out/new/ckpt.pt"]),
    ("train.py", [*TINY, "--out_dir=out/ar", "--resume", "--lr=0.5"], ["lr was 0.002, is now 0.5"]),
    ("train.py", [*TINY, "--mode=mdlm", "--schedule=cosine"], ["schedule", "nelbo"]),
    ("train.py", ["--mode=ar", "--data=toy-4096"], ["no data set at data/toy-4096/meta.json"]),
    ("prepare_data.py", ["--vocab_size=70000", "--name=new"], ["--vocab_size=70000 means nothing for"]),
    ("prepare_data.py", ["--text=toy.txt"], ["data/toy is the grammar's", "--name"]),
    ("prepare_data.py", ["--dataset=tinystories", "--name=toy"], ["data/toy is the grammar's", "--name"]),
    ("prepare_data.py", ["--text=a.txt", "--seed=7"], ["--seed=7 means nothing for text"]),
    ("prepare_data.py", ["--text=a.txt", "--dataset=tinystories"], ["--dataset=tinystories means nothing"]),
    ("train.py", ["--data=damaged", *TINY[2:]], ["data/damaged/train.bin", "prepare it again"]),
    ("sample.py", [], ["--out_dir"]),
    ("sample.py", ["--out_dir=out/none"], ["no checkpoint at out/none/best.pt", "train.py"]),
    ("sample.py", ["--out_dir=out/bad"], ["out/bad/best.pt is not a usable checkpoint"]),
    ("sample.py", ["--out_dir=out/ar", "--steps=4"], ["--steps=4", "ar"]),
    ("sample.py", ["--out_dir=out/mdlm", "--steps=-1"], ["--steps=-1"]),
    ("sample.py", ["--out_dir=out/aogpt", "--steps=100"], ["--steps=100", "48"]),
    ("sample.py", ["--out_dir=out/mdlm", "--length=1000"], ["--length=1000", "48"]),
    ("sample.py", ["--out_dir=out/mdlm", "--temperature=-1"], ["--temperature=-1"]),
    ("sample.py", ["--out_dir=out/mdlm", "--top_p=0"], ["--top_p=0", "(0, 1]"]),
    ("sample.py", ["--out_dir=out/mdlm", "--num_samples=-3"], ["--num_samples"]),
    ("sample.py", ["--out_dir=out/ar", "--sampler=confidence"], ["--sampler=confidence", "ar"]),
    ("sample.py", ["--out_dir=out/mdlm", "--sampler=ancestrl"],
     ["--sampler=ancestrl", "did you mean ancestral"]),
    ("sample.py", ["--out_dir=out/mdlm", "--steps=0"], ["--steps=0"]),
    ("sample.py", ["--out_dir=out/mdlm", "--steps=12,0"], ["--steps=0"]),
    ("sample.py", ["--out_dir=out/mdlm", "--steps=49", "--sampler=first_hitting"], ["--steps=49", "48"]),
    ("sample.py", ["--out_dir=out/mdlm", "--order=left_to_right"], ["--order=left_to_right", "mdlm"]),
    ("sample.py", ["--out_dir=out/aogpt", "--order=0,1,1"], ["--order=0,1,1", "0 to 47"]),
    ("sample.py", ["--out_dir=out/mdlm", "--prompt=One zebra"], ["zebra", "vocabulary"]),
    ("sample.py", ["--out_dir=out/mdlm", "--prompt=One day", "--length=2"],
     ["--prompt=One day", "leave something"]),
    ("sample.py", ["--out_dir=out/mdlm", "--prompt=" + "One day " * 30], ["60 tokens", "48"]),
    ("sample.py", ["--out_dir=out/ar", "--prompt=One ___ day"], ["blank", "left to right"]),
    ("sample.py", ["--out_dir=out/mdlm", "--prompt=One ___", "--blank=0"], ["--blank=0"]),
    ("sample.py", ["--out_dir=out/mdlm", "--prompt=One ___", "--blank=99"], ["--prompt=One", "100 tokens"]),
    ("sample.py", ["--out_dir=out/mdlm", "--repetition_penalty=1.3"], ["--repetition_penalty", "confidence"]),
    ("sample.py", ["--out_dir=out/mdlm", "--prompt=One day", "--blank=4"], ["--blank=4", "without ___"]),
    ("sample.py", ["--out_dir=out/ar,out/mdlm", "--draft=3"], ["--draft=3", "nothing for ar"]),
    ("sample.py", ["--out_dir=out/aogpt", "--protocol=paper"], ["--protocol=paper", "nothing for aogpt"]),
    ("sample.py", ["--out_dir=out/ar", "--protocol=paper"], ["Once", "vocabulary"]),
    ("sample.py", ["--out_dir=out/mdlm", "--sampler=confidence", "--final_temperature=-1"],
     ["--final_temperature=-1", "at least 0"]),
    ("sample.py", ["--out_dir=out/mdlm,out/none"], ["no checkpoint at out/none/best.pt"]),
    ("sample.py", ["--out_dir=out/ar,out/mdlm", "--out=both.jsonl"], ["--out=both.jsonl", "one model"]),
    ("sample.py", ["--out_dir=out/ar", "--picture=no/such/folder/s.png"], ["no/such/folder"]),
    ("sample.py", ["--out_dir=out/ar", "--dtype=float16"], ["--dtype=float16", "bfloat16"]),
    ("bench.py", ["--modes=ar,x"], ["--modes=x", "mdlm"]),
    ("sample.py", ["--out_dir=out/ar", "--draft=4"], ["--draft=4", "for ar"]),
    ("sample.py", ["--out_dir=out/aogpt", "--draft=4", "--steps=6"], ["--steps=6", "with --draft"]),
    ("bench.py", ["--n_embd=100", "--n_head=16"], ["n_embd 100", "n_head 16"]),
    ("bench.py", ["--modes=mdlm,ar", "--objective=masked_ce"], ["objective is masked_ce", "not ar"]),
    ("sample.py", ["--out_dir=out/ar", "--out=no/such/folder/s.jsonl"], ["no/such/folder"]),
    ("prepare_data.py", ["--dataset=toys"], ["toys", "toy"]),
    ("prepare_data.py", ["--text=none.txt"], ["none.txt cannot be read"]),
    ("prepare_data.py", ["--text=latin1.txt"], ["latin1.txt is not UTF-8"]),
    ("prepare_data.py", ["--text=empty.txt"], ["empty.txt holds no story"]),
    ("prepare_data.py", ["--text=empty.txt", "--vocab_size=70000"], ["70000", "257 (all bytes) to 50257"]),
    ("prepare_data.py", ["--val=empty.txt"], ["--val needs --text"]),
    ("prepare_data.py", ["--max_tokens=-5"], ["--max_tokens=-5"]),
    ("prepare_data.py", ["--dataset=tinystories"], ["could not be downloaded", "--text"]),
    ("train.py", [*TINY, "--seed=100000000000000000000"], ["--seed=1000", "1e15"]),
    ("train.py", [*TINY, "--device=meta"], ["--device=meta", "cpu, cuda and mps"]),
    ("train.py", [*TINY, "--n_embd=1000000000000"], ["not enough memory"]),
    ("sample.py", ["--out_dir=out/ar", "--out=out/ar/best.pt"], ["--out=out/ar/best.pt", "would replace"]),
    ("sample.py", ["--out_dir=out/ar", "--out=a.jsonl", "--json=a.jsonl"], ["a.jsonl", "would replace"]),
    ("sample.py", ["--out_dir=out/ar", "--json=out/ar/samples.jsonl"], ["samples.jsonl", "would replace"]),
    ("sample.py", ["--out_dir=out/ar", "--out=/dev/null"], ["--out=/dev/null", "not a plain file"]),
    ("sample.py", ["--out_dir=out/ar", "--picture=a.txt"], ["--picture=a.txt", ".png"]),
    ("sample.py", ["--out_dir=out/ar", "--json=out"], ["--json=out", "folder"]),
    ("compare.py", ["ar=out/ar", "ar=out/mdlm"], ["every NAME once"]),
    ("compare.py", ["ar=out/odd"], ["out/odd holds no readable run"]),
    ("diversity.py", ["mine=two.jsonl", "--json=two.jsonl"], ["--json=two.jsonl", "would replace"]),
    ("diversity.py", ["mine=two.jsonl", "--json=data/../two.jsonl"], ["two.jsonl", "would replace"]),
    ("compare.py", ["a=out/ar", "--text=own.txt", "--json=out/../own.txt"], ["own.txt", "would replace"]),
    ("diversity.py", ["mine=nothing.jsonl", "--data=t"], ["nothing.jsonl"]),
    ("compare.py", [], ["NAME=FOLDER"]),
    ("compare.py", ["ar=out/ar", "--text=/dev/null"], ["--text=/dev/null is empty"]),
    ("compare.py", ["text=out/ar", "--text=own.txt", "--json=own.txt"], ["--json=own.txt", "would replace"]),
    ("compare.py", ["ar=out/ar", "--json=no/such/folder/c.json", "mdlm=out/mdlm"], ["no/such/folder"]),
    ("compare.py", ["ar=out/none"], ["out/none holds no readable run"]),
    ("compare.py", ["ar=out/ar", "--json=no/such/folder/c.json"], ["no/such/folder"]),
    ("diversity.py", [], ["NAME=FILE"]),
    ("diversity.py", ["real text=two.jsonl"], ["NAME=real text"]),
    ("diversity.py", ["mine=none.jsonl"], ["none.jsonl cannot be read"]),
    ("diversity.py", ["mine=malformed.jsonl"], ["malformed.jsonl, line 2", "object with a text"]),
    ("diversity.py", ["mine=single.jsonl"], ["single.jsonl holds 1 samples", "at least 2"]),
    ("diversity.py", ["mine=empty.txt"], ["empty.txt holds 0 samples"]),
    ("diversity.py", ["mine=two.jsonl", "--data=none"], ["no data set at data/none/meta.json"]),
    ("diversity.py", ["mine=two.jsonl", "--data=t"], ["zebra", "vocabulary of data/toy"]),
    ("diversity.py", ["mine=two.jsonl", "--judge=out/mdlm"], ["--judge=out/mdlm", "exact"]),
    ("diversity.py", ["mine=two.jsonl", "--judge=out/none"], ["no checkpoint at out/none/best.pt"]),
    ("diversity.py", ["mine=two.jsonl", "--judge=out/ar", "--data=other"],
     ["--judge=out/ar", "another tokenizer"]),
    ("diversity.py", ["mine=two.jsonl", "--judge=out/ar"], ["zebra", "vocabulary of data/toy"]),
    ("diversity.py", ["mine=two.jsonl", "--plot=d.png"], ["--plot=d.png", "--data"]),
    ("diversity.py", ["mine=two.jsonl", "--json=no/such/folder/d.json"], ["no/such/folder"]),
    ("experiments/frontier.py", ["--models=out/ar"], ["--data", "--judge"]),
    ("experiments/frontier.py", ["--models=out/ar", "--data=t", "--judge=out/ar", "--temperatures=hot"],
     ["--temperatures=hot", "number"]),
]

def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

@pytest.fixture(scope="module")
def broken(trained):
    (trained / "own.txt").write_text("<|endoftext|>".join(f"Story number {i}." for i in range(100)))
    (trained / "latin1.txt").write_bytes("caf\xe9 <|endoftext|> x".encode("latin-1"))
    (trained / "empty.txt").write_text("\n")
    (trained / "malformed.jsonl").write_text('{"text": "a b"}\n{"txt": "a"}\n')
    (trained / "nothing.jsonl").write_text('{"text": null}\n{"text": "One day"}\n')
    (trained / "single.jsonl").write_text('{"text": "One day"}\n')
    (trained / "two.jsonl").write_text('{"text": "One zebra"}\n{"text": "One day"}\n')
    run("prepare_data.py", "--text=own.txt", "--name=other", cwd=trained)   # works with a GPT-2 vocabulary
    (trained / "out/bad").mkdir()
    (trained / "out/bad/best.pt").write_bytes((trained / "out/ar/best.pt").read_bytes()[:3000])
    (trained / "out/odd").mkdir()
    (trained / "out/odd/config.json").write_text("{}")
    (trained / "out/odd/log.jsonl").write_text("5\n")
    (trained / "data/damaged").mkdir()
    for name in ("meta.json", "train.bin", "val.bin"):
        (trained / "data/damaged" / name).write_bytes((trained / "data/t" / name).read_bytes())
    with open(trained / "data/damaged/train.bin", "r+b") as f:
        f.truncate(1000)
    return trained

@pytest.mark.parametrize("script, arguments, words", BAD,
                         ids=[f"{script} {' '.join(flags[-2:])[:60]}" for script, flags, _ in BAD])
def test_bad_input_gets_one_line(broken, request, script, arguments, words):
    if script == "prepare_data.py" or "--data=other" in arguments:
        request.getfixturevalue("gpt2")     # skips where there is none
    before = files(broken)
    done = run(script, *arguments, cwd=broken)
    output = done.stdout + done.stderr
    assert done.returncode == 2 and len(output.strip().splitlines()) == 1, output
    assert all(word in output for word in words), output
    assert files(broken) == before
