# Quire on CPUs, without a compiler in the image. It runs as its own user and keeps models under /models.
#
#   docker build --tag quire .
#   docker run --publish 8000:8000 --volume quire-models:/models quire
FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY src src
# What a running server does not need goes: pip, and the tests of packages.
RUN python -m venv /opt/quire \
    && /opt/quire/bin/pip install --no-cache-dir . \
    && /opt/quire/bin/pip uninstall --yes pip \
    && find /opt/quire -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -rf {} + \
    && /opt/quire/bin/python -m compileall -q /opt/quire/lib

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --create-home quire && install --directory --owner quire /models
COPY --from=build /opt/quire /opt/quire
ENV PATH=/opt/quire/bin:$PATH \
    QUIRE_HOME=/models
USER quire
WORKDIR /home/quire
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["quire"]
CMD ["serve", "--host", "0.0.0.0"]
