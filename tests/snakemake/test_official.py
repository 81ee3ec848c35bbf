"""The tests that Snakemake gives to the authors of executor plugins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("snakemake")

from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake_executor_plugin_grn import common_settings
from snakemake_interface_common.plugin_registry.tests import TestRegistryBase
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from grn_plugins.snakemake.settings import ExecutorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv


@pytest.fixture
def negotiating(
    new_env: Callable[..., BrokerEnv], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BrokerEnv]:
    """Let this process find a broker of its own."""
    env = new_env("sim:2x8000MiB")
    for name in ("GRN_SOCKET", "GRN_STATE_DIR"):
        monkeypatch.setenv(name, env.environ[name])
    before = os.getcwd()
    yield env
    os.chdir(before)  # a workflow that failed leaves us in its folder


class _Workflows(TestWorkflowsLocalStorageBase):  # type: ignore[misc]
    def get_executor(self) -> str:
        return "grn"

    @pytest.fixture(autouse=True)
    def _broker(self, negotiating: BrokerEnv) -> None:
        pass


class TestWorkflows(_Workflows):
    """Official workflows, each job under a lease."""

    __test__ = True

    def get_executor_settings(self) -> ExecutorSettings:
        """Have all rules negotiate, since none of them wishes for anything."""
        return ExecutorSettings(rules="*")


class TestWorkflowsSpawned(_Workflows):
    """The same by a Snakemake for each job."""

    __test__ = True

    def get_executor_settings(self) -> ExecutorSettings:
        """Have all rules negotiate, and each job run by a Snakemake of its own."""
        return ExecutorSettings(rules="*", exec_mode="spawn")


class TestWorkflowsWithoutSettings(_Workflows):
    """The same where a program gives no settings at all."""

    __test__ = True

    def get_executor_settings(self) -> None:
        """Give none."""


class TestRegistry(TestRegistryBase):  # type: ignore[misc]
    """The plugin as Snakemake's registry sees it."""

    __test__ = True

    def get_registry(self) -> Any:
        """Return the registry of executors."""
        return ExecutorPluginRegistry()

    def get_test_plugin_name(self) -> str:
        """Return our name in it."""
        return "grn"

    def validate_plugin(self, plugin: Any) -> None:
        """Look at what was registered."""
        assert plugin.settings_cls is ExecutorSettings
        assert plugin.common_settings == common_settings
        assert plugin.common_settings.local_exec

    def validate_settings(self, settings: Any, plugin: Any) -> None:
        """Look at what became of the arguments."""
        del plugin
        assert isinstance(settings, ExecutorSettings)
        assert (settings.policy, settings.wait, settings.no_broker) == ("pack", "10m", "run")
        assert settings.rules is None

    def get_example_args(self) -> list[str]:
        """Return arguments."""
        return ["--grn-policy", "pack", "--grn-wait", "10m", "--grn-no-broker", "run"]


def test_settings_can_be_shown_by_the_catalogue(tmp_path: Path) -> None:
    """Every setting has help, a flag and a variable, and is plain enough for JSON."""
    import json

    del tmp_path
    told = ExecutorPluginRegistry().get_plugin("grn").get_settings_info()
    assert json.loads(json.dumps([{**each, "type": None} for each in told]))
    for each in told:
        assert each["help"]
        assert each["cliarg"] == f"--grn-{each['name'].replace('_', '-')}"
        assert each["env_var"] == f"SNAKEMAKE_GRN_{each['name'].upper()}"
