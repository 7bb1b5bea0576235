// What a fetched folder is held against: digest, signature, lock.
#include <stdlib.h>

#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/sign/sigstore_world.h"
#include "hotswap/hub/test_served_norm.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::kCpu;
using test_support::TempFolder;

class VerifyKernel : public test_support::ServedNorm {};

TEST_F(VerifyKernel, ChangedBytesAreRefused) {
  const HubKernel kernel = get({.ref = "acme/norm@v1"});
  const auto tampered = [&](const char* file, const std::string& bytes) {
    const fs::path blob = fs::canonical(kernel.folder / file);
    const std::string good = read_file(blob);
    write_file(blob, bytes.empty() ? good.substr(0, good.size() - 1) + "!" : bytes);
    const std::string text = refused({.ref = "acme/norm@v1"});
    write_file(blob, good);
    return text;
  };
  expect_has(tampered("_norm_cpu.abi3.so", ""), {"File hash mismatch for _norm_cpu.abi3.so", "nothing of it was run"});
  expect_has(tampered("metadata.json", ""), {"metadata.json"});
  expect_has(
      tampered("metadata.json", R"({"name":"norm","id":"_norm_cpu","version":1,"license":"mit","python-depends":[],)"
                                R"("backend":{"type":"cpu"}})"),
      {"a digest", "skip-digest"});
  // A byte of metadata.json that no digest is about: the commit's list has the hash of the whole.
  std::string license = read_file(kernel.folder / "metadata.json");
  license.replace(license.find("mit"), 3, "gpl");
  expect_has(tampered("metadata.json", license), {"metadata.json as acme/norm@", "cache verify --remove acme/norm"});
  write_file(kernel.folder / "more.so", "x");
  expect_has(refused({.ref = "acme/norm@v1"}), {"Unknown file: more.so"});
  const HubKernel unchecked = get({.ref = "acme/norm@v1", .trust = {.skip_digest = {"acme/norm"}}});
  EXPECT_FALSE(unchecked.digest_checked);
  fs::remove(kernel.folder / "more.so");
  EXPECT_EQ(refused({.ref = "acme/norm@v1"}), "no error");
}

TEST_F(VerifyKernel, ASignatureWhereThePolicyWantsOne) {
  static const test_support::SigstoreWorld world;
  const fs::path root = cache.write("trusted_root.json", world.root().dump());
  setenv("HOTSWAP_TRUST_ROOT", root.c_str(), 1);
  const KernelRequest wanted{.ref = "acme/norm@v1",
                             .trust = {.require_signature = {"acme/*"}},
                             .signers = {{.name = "ours",
                                          .issuer = "https://issuer.test",
                                          .repository = "",
                                          .builders = {"https://git.test/org/kernels/build.yaml@refs/heads/main"},
                                          .identities = {}}}};
  const fs::path source = served.path() / "kernels/acme/norm/v2/build" / kCpu;
  write_file(source / "metadata.json.sigstore", world.bundle({.artifact = read_file(source / "metadata.json")}).dump());
  expect_has(refused(wanted), {"SignatureBundleMissing", "require-signature"});
  KernelRequest second = wanted;
  second.ref = "acme/norm@v2";
  const HubKernel kernel = get(second);
  EXPECT_EQ(kernel.signer, "ours");
  second.signers = {};
  expect_has(refused(second), {"SignatureVerificationFailure"});  // kernels-community's would do
  second.signers = wanted.signers;
  for (const char* file : {"metadata.json", "metadata.json.sigstore"}) {
    const fs::path blob = fs::canonical(kernel.folder / file);
    const std::string good = read_file(blob);
    std::string bad = good;
    const size_t at = std::string(file) == "metadata.json" ? bad.find("mit") : bad.find("\"signature\"") + 16;
    bad[at] = bad[at] == 'A' ? 'B' : 'A';
    write_file(blob, bad);
    expect_has(refused(second), {"Signature"});
    write_file(blob, good);
  }
  EXPECT_EQ(refused(second), "no error");
  unsetenv("HOTSWAP_TRUST_ROOT");
}

TEST_F(VerifyKernel, LocksPinCommitAndHash) {
  Hub hub(options());
  Lockfile lock = lock_dependencies(hub, {{.repo = "acme/norm", .version = 1}}, Lockfile::Form::kVariants);
  const LockedKernel first = lock.kernels.at(0);
  add("acme/norm", "v1", R"(,"upstream":"https://git.test/a")");  // the branch moves on
  fs::remove_all(cache.path());
  EXPECT_NE(get({.ref = "acme/norm@v1"}).location.commit, first.commit);
  // A commit that the server no longer has: the lock's word is what is asked for.
  expect_has(refused({.ref = "acme/norm@v1", .lock = &lock}), {first.commit});
  const fs::path v1 = served.path() / "kernels/acme/norm/v1";
  lock.kernels[0].commit = commit("acme/norm", "v1");
  expect_has(refused({.ref = "acme/norm@v1", .lock = &lock}), {"as they were locked", "nothing of it was run"});
  lock.kernels[0].variants = {};
  for (const auto& [variant, hash] : first.variants) lock.kernels[0].variants["other"] = hash;
  expect_has(refused({.ref = "acme/norm@v1", .lock = &lock}), {"lock` again"});
  expect_has(refused({.ref = "acme/norm@" + std::string(40, 'b'), .lock = &lock}), {"only commit"});
  expect_has(refused({.ref = {"acme/norm", {.version = 1, .locked = true}}}), {"Kernel `acme/norm` is not locked"});
  expect_has(refused({.ref = {"acme/more", {.version = 1, .trust = true, .locked = true}}, .lock = &lock}),
             {"acme/more"});

  Lockfile dependencies{.form = Lockfile::Form::kDependencies, .kernels = {}};
  dependencies.kernels.push_back({.dependency = {.repo = "acme/norm", .version = 2},
                                  .commit = lock.kernels[0].commit,
                                  .variants = {},
                                  .hash = "",
                                  .path = ""});
  EXPECT_EQ(get({.ref = "acme/norm@v2", .lock = &dependencies}).location.commit, lock.kernels[0].commit);
  EXPECT_EQ(get({.ref = "acme/norm", .lock = &dependencies}).location.commit, lock.kernels[0].commit);
  expect_has(refused({.ref = "acme/norm@v1", .lock = &dependencies}), {"only acme/norm@v2"});
}

TEST_F(VerifyKernel, AGoodLockIsKeptWhereverTheBranchGoes) {
  redirect("acme/old", "v1", "acme/norm", "v2");
  Hub hub(options());
  Lockfile lock = lock_dependencies(hub, {{.repo = "acme/norm", .version = 1}}, Lockfile::Form::kVariants);
  const LockedKernel first = lock.kernels.at(0);
  EXPECT_EQ(get({.ref = {"acme/norm", {.locked = true}}, .lock = &lock}).location.commit, first.commit);
  EXPECT_EQ(get({.ref = "acme/old", .lock = &lock}).location.commit, first.commit) << "the destination's lock";
  HubOptions plain = options();
  plain.symlinks = false;
  TempFolder other;
  plain.kernels_cache = other.path();
  Hub without_links(plain);
  EXPECT_EQ(get_kernel(without_links, {.ref = "acme/norm", .system = cpu(), .lock = &lock}).location.commit,
            first.commit);
}

}  // namespace
}  // namespace hotswap
