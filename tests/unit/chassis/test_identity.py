"""Key and certificate change together, and the key is nobody else's."""

import stat

from mesh.chassis.identity import Identity
from tests.support.pki import TestMesh


def test_the_key_is_private_and_belongs_to_the_certificate(tmp_path):
    own = TestMesh(tmp_path).identity("tokenizer")
    assert stat.S_IMODE(own.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.key.parent.stat().st_mode) == 0o700
    own.channel_credentials()  # raises nothing: the pair loads


def test_a_pinned_reader_never_mixes_two_versions(tmp_path):
    # Pitfall 14: replacing key and certificate one after the other gives a moment with neither.
    mesh = TestMesh(tmp_path)
    first = mesh.identity("tokenizer")
    pinned = Identity(first.folder.resolve())
    before = (pinned.key.read_bytes(), pinned.certificate.read_bytes())
    second = mesh.identity("tokenizer")
    assert (pinned.key.read_bytes(), pinned.certificate.read_bytes()) == before
    assert second.folder == first.folder
    assert second.key.read_bytes() != before[0]
    assert second.folder.is_symlink()


def test_old_versions_do_not_pile_up(tmp_path):
    mesh = TestMesh(tmp_path)
    for _ in range(5):
        mesh.identity("tokenizer")
    versions = list((tmp_path / "tokenizer" / "identity.d").iterdir())
    assert len(versions) == 2
