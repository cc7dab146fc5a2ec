"""A collector of spans that knows OpenTelemetry's own messages. Prints the port that it listens on; when its standard input
ends, prints each span that came as a line of JSON.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

STATUS = "http.response.status_code"
spans = []


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            return self.send_error(400)
        for of in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {attribute.key: attribute.value.string_value for attribute in of.resource.attributes}
            for scope in of.scope_spans:
                spans.extend(told(span, resource["service.name"]) for span in scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def told(span, service):
    attributes = {attribute.key: attribute.value for attribute in span.attributes}
    return {
        "service": service, "name": span.name, "kind": span.kind, "trace": span.trace_id.hex(), "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(), "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
        "status": attributes[STATUS].int_value if STATUS in attributes else None,
    }


server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
for span in spans:
    print(json.dumps(span))
