# The OpenAI-compatible HTTP gateway: no tokenizer and no tensor library inside. Build it from the repository's root:
#   docker build -f deploy/gateway.Dockerfile -t octavo-gateway .
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Dependencies first: their layer changes with pyproject.toml, not with the code.
COPY pyproject.toml deploy/constraints.txt deploy/requirements.py ./
RUN python -m venv /opt/octavo \
    && python requirements.py gateway tracing > requirements.txt \
    && /opt/octavo/bin/pip install -r requirements.txt -c constraints.txt
COPY . .
# Left out: pip, for nothing is installed at run time; packages' own tests. Bytecode is made of what is really
# imported, and no more: the running container cannot write any.
RUN /opt/octavo/bin/pip install --no-deps . \
    && /opt/octavo/bin/pip uninstall -y setuptools pip \
    && find /opt/octavo -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
WORKDIR /
RUN /opt/octavo/bin/python -c "import octavo.healthcheck, gateway.server"

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/octavo/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
RUN groupadd --gid 10001 octavo \
    && useradd --uid 10001 --gid octavo --no-create-home --home-dir /tmp --shell /usr/sbin/nologin octavo
COPY --from=build /opt/octavo /opt/octavo
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
# Ready means that the scheduler and a worker are there too, so it waits as long as the scheduler's own check.
HEALTHCHECK --interval=10s --timeout=10s --start-period=180s --retries=12 \
    CMD ["python", "-m", "octavo.healthcheck", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["python", "-m", "gateway"]
