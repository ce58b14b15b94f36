# apex.amp with its kernels: the last Apex that has it, compiled on CUDA 12, because CUDA 13 cannot. For those who
# want those kernels in the comparison; docker/Dockerfile has the same commit without them. It holds no current Apex.
#
# `apexbench image build` builds this one when config.yaml says image.legacy_kernels: true.
ARG BASE_IMAGE

FROM ${BASE_IMAGE} AS legacy
# hadolint ignore=DL3002
USER 0
# hadolint ignore=DL3008,SC2086
RUN missing=; python3 -c 'import ensurepip' 2>/dev/null || missing=python3-venv; \
    for tool in git g++; do command -v "$tool" >/dev/null || missing="${missing} $tool"; done; \
    if [ -n "${missing}" ]; then \
      apt-get update -q && apt-get install -y -q --no-install-recommends ${missing} && rm -rf /var/lib/apt/lists/*; \
    fi
RUN python3 -m venv --system-site-packages /opt/apexbench
ENV PATH=/opt/apexbench/bin:${PATH} \
    PYTHONNOUSERSITE=1
COPY docker/requirements.lock /opt/apexbench/
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --disable-pip-version-check --require-hashes --only-binary=:all: -r /opt/apexbench/requirements.lock \
 && python -c 'import torch, numpy; torch.from_numpy(numpy.ones(2)); print("torch", torch.__version__)'
RUN useradd --create-home --uid 10001 apexbench
ARG APEX_REPOSITORY
ARG LEGACY_COMMIT
ARG TORCH_CUDA_ARCH_LIST
# What checks, builds and proves is bound for this one command, and is not in the image.
RUN --mount=type=bind,source=workflow,target=/opt/build \
    PYTHONPATH=/opt/build PYTHONDONTWRITEBYTECODE=1 \
    python -P -m apexbench.image.inside legacy --repository "${APEX_REPOSITORY}" --commit "${LEGACY_COMMIT}" \
      --architectures "${TORCH_CUDA_ARCH_LIST}"
USER 10001
WORKDIR /home/apexbench
