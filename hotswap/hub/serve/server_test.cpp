// serve-hub as any HTTP client sees it: answers word for word, and how it stands under load.
#include "hotswap/hub/serve/server.h"

#include <httplib.h>

#include <nlohmann/json.hpp>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using nlohmann::json;
using test_support::expect_has;
using test_support::message_of;
using test_support::noise;
using test_support::TempFolder;

class Server : public testing::Test {
 protected:
  void SetUp() override {
    served.write("models/acme/tiny/main/config.json", "{}");
    served.write("models/acme/tiny/main/sub/notes.txt", "notes");
    served.write("models/acme/tiny/main/model.safetensors", noise(64 << 10));
  }
  HubServerOptions options() const { return {.folder = served.path(), .large_from = 16 << 10, .rescan_s = 0}; }
  void start(HubServerOptions options) {
    server = std::make_unique<HubServer>(options);
    server->start();
    client = std::make_unique<httplib::Client>("127.0.0.1", server->port());
  }
  TempFolder served;
  std::unique_ptr<HubServer> server;
  std::unique_ptr<httplib::Client> client;
};

TEST_F(Server, PathsInfoAsFormAndAsJson) {
  start(options());
  const std::string address = "/api/models/acme/tiny/paths-info/main";
  for (const auto& [body, type] :
       {std::pair{"paths=config.json&paths=sub&expand=False", "application/x-www-form-urlencoded"},
        std::pair{R"({"paths":["config.json","sub"]})", "application/json"}}) {
    const auto answer = client->Post(address, body, type);
    ASSERT_TRUE(answer) << type;
    ASSERT_EQ(answer->status, 200) << answer->body;
    const json entries = json::parse(answer->body);
    ASSERT_EQ(entries.size(), 2u) << entries;
    EXPECT_EQ(entries[0]["type"], "file");
    EXPECT_EQ(entries[0]["size"], 2);
    EXPECT_EQ(entries[1]["type"], "directory");
  }
  const auto status = [&](const std::string& at, const std::string& body) {
    const auto answer = client->Post(at, body, "application/json");
    return answer ? answer->status : -1;
  };
  EXPECT_EQ(status(address, R"({"paths":"config.json"})"), 200);
  EXPECT_EQ(status(address, "{"), 400);
  EXPECT_EQ(status(address, R"({"paths":[1]})"), 400);
  EXPECT_EQ(status("/api/models/acme/tiny/paths-info/v9", R"({"paths":[]})"), 404);
  EXPECT_EQ(status("/api/models/acme/tiny/commit/main", "{}"), 405) << "nothing else takes a body";
  EXPECT_EQ(status("/api/models/acme/tiny/paths-info/" + std::string(4000, 'x'), "{}"), 405);
  EXPECT_EQ(status(address, std::string(2 << 20, ' ')), 413);
  EXPECT_EQ(client->Get("/acme/tiny/resolve/main/config.json")->body, "{}") << "and goes on";
}

}  // namespace
}  // namespace hotswap
