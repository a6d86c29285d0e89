# Two images for machines with NVIDIA GPUs (a driver for CUDA 13, and NVIDIA's container toolkit):
#
#     docker build --target gpu --tag tailrace-gpu .      one machine
#     docker build --target ray --tag tailrace-ray .      every node of a Ray cluster (docs/ray.md)
#
#     docker run --gpus all --ipc host --volume $PWD:/workspace tailrace-gpu train qwen-gpu
#
# --ipc host: weights and batches pass through shared memory, which a container otherwise limits to 64 MB.
ARG BASE=nvidia/cuda:13.0.2-base-ubuntu24.04
FROM ${BASE} AS gpu

# Triton compiles the launchers of its kernels with a C compiler and Python's headers. torch brings its own CUDA libraries.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libc6-dev python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/tailrace
ENV PATH=/opt/tailrace/bin:$PATH PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

# The large packages first: they stay in the cache when only tailrace changes.
WORKDIR /opt/tailrace-source
COPY constraints-cuda.txt ./
RUN pip install --constraint constraints-cuda.txt vllm torch transformers
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints-cuda.txt '.[torch,data,math,lora,report,vllm]'

WORKDIR /workspace
ENTRYPOINT ["tailrace"]

FROM gpu AS ray
WORKDIR /opt/tailrace-source
RUN pip install --constraint constraints-cuda.txt '.[ray]'
# KubeRay's probes call wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /workspace
# The cluster says what a node runs: `ray start ... --block`, or `tailrace train ...` on the first one.
ENTRYPOINT []
CMD ["bash"]
