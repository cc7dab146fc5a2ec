"""Searches a running service and prints the hits.

    pip install "$(ls target/dist/souk-*.whl)[client]"
    python3 examples/search.py "desk for a small room"

The variables SOUK_URL (default: http://127.0.0.1:8080) and SOUK_API_KEY say where the service is and with which key to ask it.
"""

import sys

import souk


def main() -> None:
    query = " ".join(sys.argv[1:]) or "red lamp"
    try:
        with souk.Client() as client:
            answer = client.search(query, k=5)
    except souk.SoukError as error:
        sys.exit(f"error: {error}")
    for hit in answer.hits:
        print(f"{hit.score:.4f}  {hit.id}  {hit.title}")


if __name__ == "__main__":
    main()
