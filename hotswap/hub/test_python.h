// For tests: Python's own huggingface_hub and kernels, unmodified, on one side and serve-hub on the other.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/base/test_data.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap::test_support {

// Reads jobs of argv[1] one by one: [function, arguments, keywords], writes what came out to argv[2]: a value, or
// "ErrorClass: text".
inline constexpr const char* kPeerScript = R"py(
import json, os, sys
from pathlib import Path
import huggingface_hub as hh
def relative(path): return str(Path(path).relative_to(os.environ["HF_HUB_CACHE"]))
def files(folder): return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())
def snapshot(repo, **more):
    folder = hh.snapshot_download(repo, **more)
    return {"folder": relative(folder), "files": files(folder)}
def download(repo, name, **more): return relative(hh.hf_hub_download(repo, name, **more))
def info(repo): return hh.HfApi().model_info(repo).sha
def refs(repo): return sorted(b.name + " " + b.target_commit for b in hh.HfApi().list_repo_refs(repo, repo_type="kernel").branches)
def tree(repo, revision): return sorted(e.path for e in hh.HfApi().list_repo_tree(repo, repo_type="kernel", revision=revision, recursive=True))
def paths(repo, wanted):
    found = hh.HfApi().get_paths_info(repo, wanted)
    return [f"{e.path} {e.size} {e.lfs.sha256[:4] if e.lfs else e.blob_id[:4]}" if hasattr(e, "size") else f"{e.path}/" for e in found]
def rest(repo):
    api = hh.HfApi(token="hf_any")
    found = {f.rfilename: [f.size, f.lfs and f.lfs["size"]] for f in api.model_info(repo, files_metadata=True).siblings}
    api.auth_check(repo)
    commits = [[c.commit_id, c.authors] for c in api.list_repo_commits(repo)]
    return {"files": found, "commits": commits, "who": api.whoami()["name"],
            "models": [m.id for m in api.list_models(author="acme", search="TIN")],
            "kernels": [d.id for d in api.list_models(search="norm")]}
def absent(repo, name): return hh.try_to_load_from_cache(repo, name) is hh.file_download._CACHED_NO_EXIST
def scan():
    found = hh.scan_cache_dir()
    return {"repos": sorted(r.repo_id for r in found.repos), "warnings": [str(w) for w in found.warnings]}
def kernel(repo, **more):
    import kernels
    module = kernels.get_kernel(repo, **more)
    return {"answer": module.answer(), "place": relative(module.__file__)}
def org(name): return hh.HfApi().get_organization_overview(name).trustedKernelPublisher
def has(repo, **more):
    import kernels
    return kernels.has_kernel(repo, **more)
def lock(repo, file):
    import kernels
    return kernels.load_kernel(repo, lockfile=Path(file)).answer()
def system():
    import torch
    from kernels.backends import _select_backend
    return {"torch": torch.__version__, "backend": _select_backend(None).variant_str}
def torch_of_cuda(version):
    import torch
    torch.version.cuda = version or None
def cli(*args):
    import contextlib, io, kernels.cli
    before, code, text = sys.argv, 0, io.StringIO()
    sys.argv = ["kernels", *args]
    with contextlib.redirect_stdout(text):
        try: kernels.cli.main()
        except SystemExit as e: code = e.code
        finally: sys.argv = before
    return {"code": code, "text": text.getvalue()}
out = []
for name, args, more in json.load(open(sys.argv[1])):
    try: out.append(globals()[name](*args, **more))
    except Exception as e: out.append(f"{type(e).__name__}: {e}" + (f" (after {e.__context__!r})" if e.__context__ else ""))
json.dump(out, open(sys.argv[2], "w"))
)py";

class PythonPeer : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system((python + " -c 'import huggingface_hub' >/dev/null 2>&1").c_str()) != 0) {
      GTEST_SKIP() << python << " with the package 'huggingface_hub' is not there";
    }
    scratch.write("script.py", kPeerScript);
    server = std::make_unique<HubServer>(
        HubServerOptions{.folder = served.path(), .large_from = 1 << 20, .page = 3, .rescan_s = 0});
    server->start();
  }

  // Runs jobs in one Python process; answers in the same order.
  std::vector<nlohmann::json> ask(const nlohmann::json& jobs, bool offline = false) const {
    const std::filesystem::path in = scratch.write("in.json", jobs.dump()), out = scratch.path() / "out.json";
    std::filesystem::remove(out);
    const std::string command =
        cat("env -u HF_TOKEN -u KERNELS_CACHE -u LOCAL_KERNELS -u HF_HUB_DISABLE_TELEMETRY -u DISABLE_TELEMETRY -u "
            "DO_NOT_TRACK HF_ENDPOINT=",
            server->url(), " HF_HOME=", scratch.path().string(), "/home HF_HUB_CACHE=", cache().string(),
            " HF_HUB_OFFLINE=", offline ? 1 : 0, " HF_HUB_DISABLE_PROGRESS_BARS=1 PYTHONDONTWRITEBYTECODE=1 ", python,
            " ", scratch.path().string(), "/script.py ", in.string(), " ", out.string());
    EXPECT_EQ(std::system(command.c_str()), 0);
    return nlohmann::json::parse(read_file(out));
  }
  std::filesystem::path cache() const { return scratch.path() / "cache"; }
  HubOptions options(bool offline = false) const {
    return {
        .endpoint = server->url(), .cache = cache(), .kernels_cache = cache(), .offline = offline, .progress = false};
  }
  bool has_kernels() const {
    const std::string find = " -c 'import importlib.util as u, sys; sys.exit(not u.find_spec(\"kernels\"))'";
    return std::system((python + find).c_str()) == 0;
  }

  const std::string python = test_support::test_python();
  TempFolder served, scratch;
  std::unique_ptr<HubServer> server;
};

}  // namespace hotswap::test_support
