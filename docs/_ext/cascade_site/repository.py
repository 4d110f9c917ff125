"""Where the repository is published. GitHub's workflows say so in their environment; elsewhere the site does without."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SITE_BRANCH = "gh-pages"  # the branch that `.github/workflows/docs.yml` publishes the built site to


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository on GitHub; both fields are empty where it is not known."""

    address: str  # "https://github.com/OWNER/NAME"
    name: str  # "OWNER/NAME"

    def file(self, path: str) -> str:
        """The address of a file of the repository, "" where the repository is not known."""
        return f"{self.address}/blob/main/{path}" if self.address else ""

    def notebook(self, path: str) -> str:
        """The address that opens a notebook of the published site in Colab, "" where the repository is not known."""
        return f"https://colab.research.google.com/github/{self.name}/blob/{SITE_BRANCH}/{path}" if self.name else ""


def _from_environment() -> Repository:
    name = os.environ.get("GITHUB_REPOSITORY", "")
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    return Repository(f"{server}/{name}", name) if name else Repository("", "")


REPOSITORY = _from_environment()
