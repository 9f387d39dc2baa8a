#!/usr/bin/env bash
# Gradescope runs this once, as root, when the autograder is uploaded. It installs what the grader needs.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}"

python=python3
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    apt-get update
    apt-get install -y python3.11 python3.11-venv
    python=python3.11
fi
$python -m venv venv
# PyTorch for CPUs is a tenth of the one for GPUs.
venv/bin/pip install "$(grep ^torch source/lab/requirements.txt)" --index-url https://download.pytorch.org/whl/cpu
venv/bin/pip install numpy tiktoken tqdm
