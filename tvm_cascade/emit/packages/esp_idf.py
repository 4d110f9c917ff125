"""An ESP-IDF component with an example, by "Build System" and "idf_component.yml" of Espressif's documentation."""

from __future__ import annotations

from pathlib import Path

from tvm_cascade.emit.package import Package, PackageKind, section_text, write_sources

# .ext_ram.bss exists where the project's configuration lets bss lie in external RAM
_SECTIONS = {"psram": (("defined(CONFIG_SPIRAM_ALLOW_BSS_SEG_EXTERNAL_MEMORY)", ".ext_ram.bss"),)}


class _EspIdf(PackageKind):
    templates = "esp_idf"
    title = "an ESP-IDF component"
    sections = _SECTIONS

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        write_sources(package, folder / "src", folder / "include", section_text(package, self.sections))
        return {
            "sources": "\n".join(f"         src/{source}" for source, _ in package.sources()),
            "report": "\n".join(
                f'    printf("{network.name}: status %d\\n", (int)call_{network.name}());'
                for network in package.networks
            ),
        }


KIND = _EspIdf()
