// The viewer of the HTTP API. Without `validatorUrl` it would send the document's address to a public server.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#viewer", deepLinking: true, validatorUrl: null });
