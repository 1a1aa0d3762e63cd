from ops.launcher.misspelled import misspelled


def test_a_name_that_is_no_setting_is_told_with_the_one_that_was_meant() -> None:
    environment = {"QUIRE_KV_MEMRY": "", "QUIRE_DTYPE": "", "QUIRE_WEATHER": "", "PATH": "", "quire_host": ""}
    assert list(misspelled(environment)) == [
        "QUIRE_KV_MEMRY is no setting: QUIRE_KV_MEMORY is",
        "QUIRE_WEATHER is no setting",
    ]
