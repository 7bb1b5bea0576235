// The little that a Hub client must know of URLs.
#pragma once

#include <string>
#include <string_view>

namespace hotswap {

// Everything but letters, digits and -._~ as %XX. keep_slash: '/' stays as it is.
std::string percent_encode(std::string_view text, bool keep_slash);

// "https://host:443" of a URL: scheme, host (lower case) and port, the default one written out. Error when it is not an
// http or https URL.
std::string url_origin(const std::string& url);

// Where a Location header (or a Link) leads from `base`. Error when that is not http or https.
std::string url_resolve(const std::string& base, const std::string& location);

// "https://host/x" and "//host/x" name a host; "/x" and "x" do not.
bool url_names_host(std::string_view location);

// For messages and logs: user:password@ and the query (signatures) taken out.
std::string url_shown(const std::string& url);

// <URL>; rel="next" of a Link header; empty when there is none.
std::string link_next(std::string_view header);

}  // namespace hotswap
