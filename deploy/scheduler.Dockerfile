# The scheduler service and the `octavo` command; no tensor library inside. Build it from the repository's root:
#   docker build -f deploy/scheduler.Dockerfile -t octavo-scheduler .
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Dependencies first: their layer changes with pyproject.toml, not with the code.
COPY pyproject.toml deploy/constraints.txt deploy/requirements.py ./
RUN python -m venv /opt/octavo \
    && python requirements.py scheduler tracing > requirements.txt \
    && /opt/octavo/bin/pip install -r requirements.txt -c constraints.txt
COPY . .
# Left out: pip, for nothing is installed at run time; hf-xet, which fetches models from a hub; packages' own tests.
# Bytecode is made of what is really imported, and no more: the running container cannot write any.
RUN /opt/octavo/bin/pip install --no-deps . \
    && /opt/octavo/bin/pip uninstall -y hf-xet setuptools pip \
    && find /opt/octavo -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
WORKDIR /
RUN /opt/octavo/bin/python -c "import octavo.healthcheck, octavo_client.cli, scheduler_svc.app"

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/octavo/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
# The volume of models takes this folder's owner when it is made.
RUN groupadd --gid 10001 octavo \
    && useradd --uid 10001 --gid octavo --no-create-home --home-dir /tmp --shell /usr/sbin/nologin octavo \
    && install -d -o octavo -g octavo /models
COPY --from=build /opt/octavo /opt/octavo
USER 10001:10001
WORKDIR /tmp
EXPOSE 7450 9450
# Ready means that a worker is there too. Unhealthy after 12 failures: a worker that restarts is back before.
HEALTHCHECK --interval=10s --timeout=10s --start-period=180s --retries=12 \
    CMD ["python", "-m", "octavo.healthcheck", "127.0.0.1:7450", "octavo.v1.InferenceService"]
ENTRYPOINT ["python", "-m", "scheduler_svc"]
